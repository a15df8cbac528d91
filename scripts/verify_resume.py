"""Prove exact resume on this machine: `python scripts/verify_resume.py [what train.py takes] [kills=5]`.

Trains twice, once in one go and once killed with SIGKILL at random moments, and compares every byte.
"""

import shutil
import sys
import tempfile
from pathlib import Path

try:
    from minigpt.faults import UserFault, run_script
except ModuleNotFoundError:
    print("minigpt is not installed here. Run `make setup`, then use .venv/bin/python for python.", file=sys.stderr)
    sys.exit(2)


def main(arguments: list[str]) -> int:
    """Exit code 0: the same bytes. 1: other bytes. As train.py's otherwise."""
    if "--help" in arguments or "-h" in arguments:
        print(f"{__doc__}\nExample: python scripts/verify_resume.py experiment=demo trainer.max_steps=60 kills=5")
        return 0
    from minigpt.config.compose import compose

    given = [argument for argument in arguments if not argument.startswith(("kills=", "run.dir=", "logger="))]
    kills = next((argument.removeprefix("kills=") for argument in arguments if argument.startswith("kills=")), "5")
    if not (kills.isascii() and kills.isdigit() and 1 <= int(kills) <= 10_000):
        raise UserFault(f"kills={kills}: how often shall the run be killed? Give a whole number, like kills=5")
    config = compose("train", given)

    from minigpt.verify import verify_resume

    folder = Path(tempfile.mkdtemp(prefix="minigpt-verify-"))
    command = [sys.executable, str(Path(__file__).with_name("train.py")), *given]
    verdict = verify_resume(config, command, kills=int(kills), folder=folder)
    print(f"Compared       {verdict.compared}")
    for difference in verdict.differences:
        print(f"Different      {difference}")
    if verdict.differences:
        print(f"NOT EXACT: killed {verdict.kills} times, the run ended with other bytes. Both runs are in {folder}")
        if config.trainer.device != "cpu" and not config.trainer.deterministic:
            print("On a GPU, equal bits need trainer.deterministic=true")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print(f"EXACT: killed {verdict.kills} times, the run ended with the same bytes as the one that was not.")
    return 0


if __name__ == "__main__":
    run_script(main)
