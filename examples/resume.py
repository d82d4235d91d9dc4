"""Kill a training run and resume exactly where it was: python examples/resume.py [FOLDER]

The "trainer" is a separate process that writes a checkpoint every few steps. It is killed twice,
without warning, and started again. All its runs together see the same batches as one
uninterrupted run. Without a folder it uses a temporary one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock as wds

EVERY = 3  # steps between checkpoints


def make(folder: Path) -> wds.DataPipeline:
    shards = wds.WebDataset(str(folder / "train-{00..03}.tar"), index=True, shardshuffle=4, seed=1)
    return shards.decode().map(jitter, rng=True).to_tuple("cls").batched(8)


def jitter(sample: dict, rng) -> dict:
    """Add random noise; after a resume it draws the same numbers again."""
    sample["cls"] += float(rng.normal())
    return sample


def train(folder: Path, die_at: int) -> None:
    """Train from the last checkpoint; kill the process in the middle of step ``die_at``."""
    checkpoint = folder / "checkpoint.json"
    dataset, losses = make(folder), []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        losses = saved["losses"]  # the "model"
        dataset.load_state_dict(saved["data"])
    for (values,) in dataset:
        losses.append(float(values.sum()))
        if len(losses) == die_at:
            os.kill(os.getpid(), 9)
        if len(losses) % EVERY == 0:
            partial = checkpoint.with_suffix(".partial")
            partial.write_text(json.dumps({"losses": losses, "data": dataset.state_dict()}))
            partial.replace(checkpoint)
    (folder / "losses.json").write_text(json.dumps(losses))


def main(folder: Path) -> None:
    with wds.ShardWriter(
        str(folder / "train-%02d.tar"), maxcount=50, verbose=0, index=True
    ) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number:04d}", "cls": number})
    for name in ("checkpoint.json", "losses.json"):
        (folder / name).unlink(missing_ok=True)

    wanted = [float(values.sum()) for (values,) in make(folder)]
    for die_at in (8, 17, 0):
        command = [sys.executable, __file__, str(folder), "--die-at", str(die_at)]
        status = subprocess.run(command, check=False).returncode
        print(f"the trainer {'ended' if status == 0 else 'was killed in step ' + str(die_at)}")
    found = json.loads((folder / "losses.json").read_text())
    assert found == wanted, "a resumed run must equal an uninterrupted one"
    print(f"{len(found)} steps, equal to an uninterrupted run, bit for bit")


if __name__ == "__main__":
    if "--die-at" in sys.argv:
        train(Path(sys.argv[1]), int(sys.argv[3]))
    elif len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
