//! The calls of all ranks with all ranks: their steps within the hosts and between them.

use std::ops::Range;
use std::sync::Arc;

use rankrun_contract::rank::Rank;

use super::blocks::block_ranges;
use super::{Mixed, MixedCall};
use crate::process_group::collective::HostCollective;
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::tcp::exchange::Transfer;
use crate::process_group::transport::Transport;
use crate::process_group::{layout, reduce};

/// Up to this many bytes every host sends to every other one at once: fewer hops save more than fewer bytes.
const MAX_SMALL_BYTES: usize = 32 * 1024;

/// Bytes of each rank that `reduce_scatter` works on at a time: it bounds the memory of a call.
pub(super) const REDUCE_SCATTER_BYTES: usize = 1024 * 1024;

/// The reduced parts for ranks of one host.
type Sums = Vec<(Rank, Vec<u8>)>;

impl Mixed {
    /// All ranks of a host meet before one of them tells another host.
    pub(super) fn barrier(&mut self, mut mixed_call: MixedCall<'_>) -> Result<(), GroupFailure> {
        self.run_on_host(&mixed_call, |shm, step| shm.run(step, HostCollective::Barrier))?;
        let grid = Arc::clone(&self.grid);
        self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
            send: grid.serves(rank).then_some(&[]),
            receive: grid.is_served_by(rank).then_some(&mut []),
        })
    }

    pub(super) fn all_reduce(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        if data.len() <= MAX_SMALL_BYTES {
            return self.all_reduce_small(mixed_call, data, op);
        }
        for range in block_ranges(data.len(), self.grid.stream_count()) {
            self.all_reduce_block(&mut mixed_call, &mut data[range], op)?;
        }
        Ok(())
    }

    /// Every rank gets the reduction over its host, and that of each other host from one rank there.
    fn all_reduce_small(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let within = op_without_division(op);
        self.run_on_host(&mixed_call, |shm, step| {
            shm.run(step, HostCollective::AllReduce { data: &mut *data, op: within })
        })?;
        let arrivals = self.exchange_small(&mut mixed_call, data)?;
        let sources: Vec<&[u8]> = arrivals.iter().map(Vec::as_slice).collect();
        reduce::reduce_into((mixed_call.call().data_type, op), data, &sources, Some(self.world));
        Ok(())
    }

    /// The data of each host, from one of its ranks.
    fn exchange_small(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        own: &[u8],
    ) -> Result<Vec<Vec<u8>>, GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let mut arrivals = vec![own.to_vec(); grid.host_count()];
        let mut slots: Vec<Option<&mut [u8]>> =
            arrivals.iter_mut().map(|arrival| Some(&mut arrival[..])).collect();
        self.exchange_between_hosts(mixed_call, |rank| Transfer {
            send: grid.serves(rank).then_some(own),
            receive: if grid.is_served_by(rank) { slots[grid.position(rank).0].take() } else { None },
        })?;
        Ok(arrivals)
    }

    pub(super) fn broadcast(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        root: Rank,
    ) -> Result<(), GroupFailure> {
        if data.len() <= MAX_SMALL_BYTES {
            return self.broadcast_small(mixed_call, data, root);
        }
        for range in block_ranges(data.len(), self.grid.stream_count()) {
            self.broadcast_block(&mut mixed_call, &mut data[range], root)?;
        }
        Ok(())
    }

    /// The root sends to one rank of each other host.
    fn broadcast_small(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        root: Rank,
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let (host, index) = grid.position(root);
        if grid.host == host && grid.index == index {
            let data: &[u8] = data;
            let send = |rank| {
                grid.position(rank).0 != host && grid.counterpart(grid.position(rank).0, index) == rank
            };
            self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: send(rank).then_some(data),
                receive: None,
            })?;
        } else if grid.host != host && grid.counterpart(grid.host, index) == grid.local_ranks()[grid.index] {
            let mut data = Some(&mut *data);
            self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: None,
                receive: if rank == root { data.take() } else { None },
            })?;
        }
        let first = grid.position(grid.counterpart(grid.host, index)).1;
        let root = Rank(u32::try_from(first).unwrap_or(u32::MAX));
        self.run_on_host(&mixed_call, |shm, step| shm.run(step, HostCollective::Broadcast { data, root }))
    }

    /// Each host reduces the parts of all ranks, and sends every other host the parts of its ranks.
    pub(super) fn reduce_scatter(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        (input, output): (&[u8], &mut [u8]),
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let length = output.len();
        for start in (0..length.max(1)).step_by(REDUCE_SCATTER_BYTES) {
            let range = start..length.min(start + REDUCE_SCATTER_BYTES);
            let part = |rank: Rank| shift_range(&range, rank.index() * length);
            let mut sums = self.reduce_rows(&mixed_call, (input, range.len()), (&part, op))?;
            let grid = Arc::clone(&self.grid);
            let mut arrivals = vec![vec![0; range.len()]; grid.host_count()];
            arrivals[grid.host] = sums[grid.host].pop().map(|(_, sum)| sum).unwrap_or_default();
            let mut slots: Vec<Option<&mut [u8]>> =
                arrivals.iter_mut().map(|arrival| Some(&mut arrival[..])).collect();
            let sum_for = |rank: Rank| sums[grid.position(rank).0].iter().find(|(of, _)| *of == rank);
            self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: if grid.serves(rank) { sum_for(rank).map(|(_, sum)| &sum[..]) } else { None },
                receive: if grid.is_served_by(rank) { slots[grid.position(rank).0].take() } else { None },
            })?;
            let sources: Vec<&[u8]> = arrivals.iter().map(Vec::as_slice).collect();
            let kind = (mixed_call.call().data_type, op);
            reduce::reduce_into(kind, &mut output[range], &sources, Some(self.world));
        }
        Ok(())
    }

    /// Reduces over this host for the ranks that this one serves, by host; on its own host for itself.
    fn reduce_rows(
        &mut self,
        mixed_call: &MixedCall<'_>,
        (input, length): (&[u8], usize),
        (part, op): (&dyn Fn(Rank) -> Range<usize>, ReduceOp),
    ) -> Result<Vec<Sums>, GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let mut all = Vec::with_capacity(grid.host_count());
        for host in 0..grid.host_count() {
            let mut sums = Vec::new();
            for row in grid.rows(host) {
                let parts: Vec<Range<usize>> = row.iter().map(|rank| rank.map_or(0..0, part)).collect();
                let own = parts[grid.index].clone();
                let mut sum = input[own].to_vec();
                self.run_on_host(mixed_call, |shm, step| {
                    shm.reduce_own_part_into(step, (input, &mut sum), (&parts, op))
                })?;
                debug_assert!(sum.len() == length || sum.is_empty(), "a part, or none");
                sums.extend(row[grid.index].map(|rank| (rank, sum)));
            }
            all.push(sums);
        }
        Ok(all)
    }

    /// Each rank sends its input to one rank of every other host, which shares it with its host.
    pub(super) fn all_gather(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let length = input.len();
        let me = grid.local_ranks()[grid.index];
        let part = |rank: Rank| shift_range(&(0..length), rank.index() * length);
        output[part(me)].copy_from_slice(input);
        let mut slots = layout::split_mut_by_lengths(output, vec![length; self.world as usize]).into_iter();
        self.exchange_between_hosts(&mut mixed_call, |rank| {
            // One slot for each rank, with this one.
            let slot = slots.next();
            Transfer {
                send: grid.is_served_by(rank).then_some(input),
                receive: if grid.serves(rank) { slot } else { None },
            }
        })?;
        for row in (0..grid.host_count()).flat_map(|host| grid.rows(host)) {
            let parts: Vec<Range<usize>> = row.iter().map(|rank| rank.map_or(0..0, part)).collect();
            self.run_on_host(&mixed_call, |shm, step| shm.all_gather_parts(step, output, &parts))?;
        }
        Ok(())
    }
}

/// Within a host a mean is a sum, which is divided once at the end.
fn op_without_division(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Mean { ReduceOp::Sum } else { op }
}

fn shift_range(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
