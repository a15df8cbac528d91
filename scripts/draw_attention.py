"""Draw what each head attends to: `python scripts/draw_attention.py checkpoint=RUN text="..." [out=DIR]`."""

import sys

try:
    from minigpt.faults import UserFault, run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)

USAGE = """Type: python scripts/draw_attention.py checkpoint=RUN text="..." [out=DIR] [which=best|latest]
  checkpoint  a run directory (runs/NAME) or a checkpoint in it
  text        what the model reads, taken literally
  out         where the pictures go, one PNG per layer; default RUN/attention"""


def main(arguments: list[str]) -> int:
    """Every value is taken literally, whatever characters it holds."""
    if any(argument in ("--help", "-h") for argument in arguments):
        print(f"{__doc__}\n{USAGE}")
        return 0
    given = dict(argument.partition("=")[::2] for argument in arguments)
    for key in given:
        if key not in ("checkpoint", "text", "out", "which"):
            raise UserFault(f"draw_attention.py knows no {key!r}. {USAGE}")
    if not given.get("checkpoint") or not given.get("text") or given.get("which", "best") not in ("best", "latest"):
        raise UserFault(f"draw_attention.py wants a checkpoint and a text. {USAGE}")

    from minigpt.report.attention import draw_attention

    paths = draw_attention(given["checkpoint"], given["text"], given.get("out") or None, given.get("which", "best"))
    print("Wrote", *paths, sep="\n  ")
    return 0


if __name__ == "__main__":
    run_script(main)
