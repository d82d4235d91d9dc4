"""Train on images from shards with torch: python examples/train_images.py [FOLDER]

Needs penstock[torch,image]. Without a folder it uses a temporary one.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import penstock as wds
from penstock.datasets import drawn_images


def crop(image: torch.Tensor) -> torch.Tensor:
    """Return the centre 64 by 64 pixels."""
    top, left = (image.shape[1] - 64) // 2, (image.shape[2] - 64) // 2
    return image[:, top : top + 64, left : left + 64]


def main(folder: Path) -> None:
    with wds.ShardWriter(str(folder / "shapes-%06d.tar"), maxcount=100, verbose=0) as writer:
        for sample in drawn_images(400):
            writer.write(sample)

    # Decode and batch in the workers; after the loader, shuffle across workers and batch again.
    dataset = (
        wds.WebDataset(str(folder / "shapes-{000000..000003}.tar"), shardshuffle=4, seed=1)
        .decode("torchrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(crop, int)
        .batched(16)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    loader = loader.unbatched().shuffle(200).batched(32)

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 15, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(2):
        losses = []
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {len(losses)} batches, loss {sum(losses) / len(losses):.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
