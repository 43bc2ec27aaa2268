"""Torture of the rewriter: random cases, proofs without a GPU, runs on one, and faults planted on purpose."""
