"""The forwarder: a process beside a job that copies its journals to Aim, and may die at any moment.

`start` is the harness's side.  Everything else runs in the process, under an interpreter that has Aim, from Python 3.10
on: standard library and `harness.probe` only, Aim inside functions."""
