"""The command line beside pytest: `exec` for one program, `summary` for CI, `validate` and `stack` before a night of
benchmarks, `doctor` before it for the machine, `diagnose` after one."""

import typer

from harness.cli import execute
from harness.cli.diagnose import diagnose
from harness.cli.doctor import doctor
from harness.cli.stack import stack
from harness.cli.summary import summary
from harness.cli.validate import validate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def harness() -> None:
    """Benchmark the fine-tuning of language models.  The benchmarks themselves run under pytest."""


# What follows the program's name is the program's, options too.
app.command("exec", cls=execute.Command, context_settings={"allow_interspersed_args": False})(execute.execute)
app.command()(diagnose)
app.command()(doctor)
app.command()(stack)
app.command()(summary)
app.command()(validate)


def main() -> None:
    app()
