"""Reads `length world seed epoch shuffle drop_last` lines and writes the samples of each rank of each, one rank in a line."""

import sys

from torch.utils.data import DistributedSampler

for line in sys.stdin:
    length, world, seed, epoch, shuffle, drop_last = (int(word) for word in line.split())
    for rank in range(world):
        sampler = DistributedSampler(
            range(length),
            num_replicas=world,
            rank=rank,
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=bool(drop_last),
        )
        sampler.set_epoch(epoch)
        print(*sampler)
