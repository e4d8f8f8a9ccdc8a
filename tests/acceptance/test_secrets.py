"""Secrets reach no record, report or journal; raw logs, readable by their owner alone, hold what a program prints."""

from collections.abc import Callable

from tests.acceptance.conftest import Bench

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
PASSWORD = "correct-horse-battery"
OPTION = "staple-and-more-staples"
INHERITED = "a-key-of-the-surroundings"
SCENARIO = f"""
name: leak
processes: 1
env: {{HF_TOKEN: {TOKEN}, PLAIN: "{TOKEN}"}}
labels: {{note: "see https://me:{PASSWORD}@example.org"}}
trainer:
  kind: script
  target: ../leak.py
  args: ["--hub-token", "{OPTION}", "{INHERITED}", "https://me:{PASSWORD}@example.org/x"]
"""
RAW = {"stdout.log", "stderr.log", "launcher.log"}


def test_secrets_stay_where_they_are(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    done = bench.run("--label", f"token={TOKEN}", environ={"OTHER_API_KEY": INHERITED})
    assert done.returncode == 1
    assert "cannot log in" in done.stdout
    written = {
        path: path.read_text(errors="replace")
        for path in bench.session.rglob("*")
        if path.is_file() and path.name not in RAW
    }
    written[bench.root / "junit.xml"] = (bench.root / "junit.xml").read_text()
    assert any(path.name == "error.json" for path in written)
    shown = {"terminal": done.stdout + done.stderr, **{str(path): text for path, text in written.items()}}
    for secret in (TOKEN, PASSWORD, OPTION, INHERITED):
        assert [where for where, text in shown.items() if secret in text] == []


def test_raw_logs_are_the_owners_alone(make_bench: Callable[[str], Bench]) -> None:
    bench = make_bench(SCENARIO)
    bench.run()
    job = bench.session / "leak-1proc" / "attempt-1"
    assert TOKEN in (job / "rank-0" / "stdout.log").read_text()
    assert job.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in job.rglob("*.log"))
