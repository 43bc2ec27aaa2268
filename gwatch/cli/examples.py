"""Two examples per command, shown at the end of its ``--help``; the tests parse each of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, str]] = {
    "rewrite": ("gwatch rewrite matmul.cubin --kernel matmul --list --only 'BAR|LDG'",
                "gwatch rewrite matmul.cubin --kernel matmul --site op:BAR.SYNC@first,warp --clock sm -o out.cubin"),
    "decode": ("gwatch decode ring.bin --cubin out.cubin",
               "gwatch decode ring.bin --cubin out.cubin --region 0:1:mainloop -o trace.html"),
    "trace": ("gwatch trace --list -- python train.py",
              "gwatch trace --kernel softmax --auto -o softmax.html -- python train.py --steps 10"),
    "show": ("gwatch show trace.json --block 0-3 --longest-bubble",
             "gwatch show rank0.gwatch rank1.gwatch -o all.html"),
    "inspect": ("gwatch inspect model.pt2 --vectorization",
                "gwatch inspect build/ --require 'LDG.E.128 >= 2' --fail-on spill"),
    "check": ("gwatch check patched.cubin --original kernel.cubin",
              "gwatch check build/ --kernel softmax --json"),
    "diff": ("gwatch diff before.cubin after.cubin --kernel matmul",
             "gwatch diff old.whl new.whl --stat --fail-on registers"),
    "disasm": ("gwatch disasm matmul.cubin --kernel matmul --labels -o matmul.sass",
               "gwatch disasm --raw --arch sm_90a words.bin"),
    "asm": ("gwatch asm matmul.sass --cubin matmul.cubin -o patched.cubin", "gwatch asm matmul.sass -o words.bin"),
    "doctor": ("gwatch doctor", "gwatch doctor --gpu --json"),
    "schema": ("gwatch schema show", "gwatch schema inspect -o inspect.schema.json"),
    "skill": ("gwatch skill", "gwatch skill -o .agents/skills/gwatch/SKILL.md"),
}

NOTES: dict[str, tuple[str, ...]] = {
    "inspect": (
        "A given PATH of which nothing can be read ends with exit code 2 and a line on standard error; a member of an",
        "archive, library or folder that can't be read is named in the report, which is no error while others can.",
    ),
    "skill": ("The folder of the file must exist: mkdir -p .agents/skills/gwatch",),
    "doctor": (
        "The last two lines are the verdict. Exit code 0: cubins can be read and changed here, whatever is missing for",
        "running them; 2: they can't, or a part is broken. With --gpu, 0 says that kernels can be run and traced too.",
    ),
}
"""What a command's ``--help`` says before them."""


def epilog(name: str) -> str:
    """The last lines of a command's help."""
    lines = ["examples:", *(f"  {line}" for line in EXAMPLES[name])]
    return "\n".join([*NOTES[name], "", *lines] if name in NOTES else lines)
