//! Large data, block by block: each rank exchanges a part of the block with the other hosts.

use std::ops::Range;

use rankrun_contract::rank::Rank;

use super::ring::{self, CHUNK_BYTES, HopAction};
use super::{Mixed, MixedCall};
use crate::process_group::collective::HostCollective;
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::tcp::exchange::Transfer;
use crate::process_group::transport::Transport;
use crate::process_group::{layout, reduce};

/// Bytes of a block per stream. It bounds the messages of a call, so that a rank that waits for
/// its host can read them ahead.
const STREAM_BLOCK_BYTES: usize = 16 * 1024 * 1024;

/// The blocks of this many bytes.
pub(super) fn block_ranges(bytes: usize, streams: usize) -> impl Iterator<Item = Range<usize>> {
    let length = STREAM_BLOCK_BYTES * streams;
    (0..bytes).step_by(length).map(move |start| start..bytes.min(start + length))
}

impl Mixed {
    /// The ranks of each host reduce one part each, exchange it with the other hosts, and share the result.
    pub(super) fn all_reduce_block(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        block: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let parts = self.rank_parts(mixed_call, block.len());
        self.run_on_host(mixed_call, |shm, step| shm.reduce_own_part(step, block, (&parts, op)))?;
        if self.grid.index < self.grid.stream_count() {
            self.reduce_ring(mixed_call, &mut block[parts[self.grid.index].clone()], op)?;
        }
        self.run_on_host(mixed_call, |shm, step| shm.all_gather_parts(step, block, &parts))
    }

    /// Reduces this rank's part over the hosts.
    fn reduce_ring(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let (data_type, hosts) = (mixed_call.call().data_type, self.grid.host_count());
        if hosts == 2 {
            return self.reduce_two_hosts(mixed_call, data, op);
        }
        let (next, previous) = (self.grid.rank_hosts_ahead(1), self.grid.rank_hosts_ahead(hosts - 1));
        let mut arrivals = vec![0; CHUNK_BYTES];
        for hop in ring::all_reduce_hops((data.len(), data_type.size()), hosts, self.grid.host) {
            let (send, target) = disjoint_ranges(data, &hop.send, &hop.receive);
            let is_kept = hop.action == HopAction::Keep;
            let arrival = &mut arrivals[..hop.receive.len()];
            let mut place = Some(if is_kept { target } else { &mut *arrival });
            self.exchange_between_hosts(mixed_call, |rank| Transfer {
                send: (rank == next).then_some(send),
                receive: if rank == previous { place.take() } else { None },
            })?;
            if !is_kept {
                let finish = (hop.action == HopAction::Finish).then_some(self.world);
                reduce::fold((data_type, op), &mut data[hop.receive], &[&*arrival], finish);
            }
        }
        Ok(())
    }

    /// Reduces over two hosts: each sends all its data. That is as many bytes as around a ring, with
    /// one wait for the other host.
    fn reduce_two_hosts(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let (other, world, is_first) = (self.grid.rank_hosts_ahead(1), self.world, self.grid.host == 0);
        let exchange = mixed_call.next_exchange();
        self.run_between_hosts(|tcp| tcp.swap(&exchange, (data, other), (op, is_first, Some(world))))
    }

    /// Broadcasts a block: the ranks of the root's host send one part each to the next host, and
    /// so on from host to host.
    pub(super) fn broadcast_block(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        block: &mut [u8],
        root: Rank,
    ) -> Result<(), GroupFailure> {
        let parts = self.rank_parts(mixed_call, block.len());
        let (host, index) = self.grid.position(root);
        let is_first = self.grid.host == host;
        if is_first {
            let root = Rank(u32::try_from(index).unwrap_or(u32::MAX));
            let data = &mut *block;
            self.run_on_host(mixed_call, |shm, step| {
                shm.run(step, HostCollective::Broadcast { data, root })
            })?;
        }
        if self.grid.index < self.grid.stream_count() {
            self.forward_chunks(mixed_call, &mut block[parts[self.grid.index].clone()], host)?;
        }
        if is_first {
            Ok(())
        } else {
            self.run_on_host(mixed_call, |shm, step| shm.all_gather_parts(step, block, &parts))
        }
    }

    /// Receives the data from the previous host and sends it to the next one, chunk by chunk.
    fn forward_chunks(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        data: &mut [u8],
        first: usize,
    ) -> Result<(), GroupFailure> {
        let hosts = self.grid.host_count();
        let (next, previous) = (self.grid.rank_hosts_ahead(1), self.grid.rank_hosts_ahead(hosts - 1));
        let place = (self.grid.host + hosts - first) % hosts;
        for number in 0..data.len().div_ceil(CHUNK_BYTES) {
            let chunk = &mut data[ring::chunk(&(0..usize::MAX), number).start..];
            let length = chunk.len().min(CHUNK_BYTES);
            let chunk = &mut chunk[..length];
            // A message has the same step number at both ends.
            let exchanges = mixed_call.exchanges;
            if place > 0 {
                let mut slot = Some(&mut *chunk);
                self.exchange_between_hosts(mixed_call, |rank| Transfer {
                    send: None,
                    receive: if rank == previous { slot.take() } else { None },
                })?;
            }
            mixed_call.exchanges = exchanges;
            if place + 1 < hosts {
                let chunk = &*chunk;
                self.exchange_between_hosts(mixed_call, |rank| Transfer {
                    send: (rank == next).then_some(chunk),
                    receive: None,
                })?;
            }
            mixed_call.exchanges = exchanges + 1;
        }
        Ok(())
    }

    /// The part of a block that each rank of this host exchanges; empty for ranks beyond the streams.
    fn rank_parts(&self, mixed_call: &MixedCall<'_>, bytes: usize) -> Vec<Range<usize>> {
        let size = mixed_call.call().data_type.size().max(1);
        let parts = layout::partition(bytes / size, self.grid.stream_count());
        let parts = parts.into_iter().map(|rows| rows.start * size..rows.end * size);
        parts.chain(std::iter::repeat(0..0)).take(self.grid.local_ranks().len()).collect()
    }
}

/// Two ranges of the data that do not overlap.
fn disjoint_ranges<'a>(
    data: &'a mut [u8],
    one: &Range<usize>,
    other: &Range<usize>,
) -> (&'a [u8], &'a mut [u8]) {
    if one.start <= other.start {
        let (low, high) = data.split_at_mut(other.start);
        (&low[one.clone()], &mut high[..other.len()])
    } else {
        let (low, high) = data.split_at_mut(one.start);
        (&high[..one.len()], &mut low[other.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disjoint_ranges_are_borrowed_together() {
        let mut data = [0, 1, 2, 3, 4, 5];
        assert_eq!(disjoint_ranges(&mut data, &(0..2), &(4..6)), (&[0, 1][..], &mut [4, 5][..]));
        assert_eq!(disjoint_ranges(&mut data, &(3..6), &(0..3)), (&[3, 4, 5][..], &mut [0, 1, 2][..]));
        assert_eq!(disjoint_ranges(&mut data, &(6..6), &(0..6)).0, &[0u8; 0]);
    }

    #[test]
    fn blocks_are_adjacent_and_cover_all_bytes() {
        let all: Vec<_> = block_ranges(9 * STREAM_BLOCK_BYTES + 1, 2).collect();
        assert_eq!(all.len(), 5);
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(all[4], 8 * STREAM_BLOCK_BYTES..9 * STREAM_BLOCK_BYTES + 1);
    }
}
