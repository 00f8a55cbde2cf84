//! The calls of all ranks with all ranks: their steps within the hosts and between them.

use std::ops::Range;
use std::sync::Arc;

use rankrun_contract::rank::Rank;

use super::blocks::blocks;
use super::{Mixed, MixedCall};
use crate::process_group::collective::HostCollective;
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::tcp::exchange::Transfer;
use crate::process_group::transport::Transport;
use crate::process_group::{layout, reduce};

/// Up to this many bytes every host sends to every other one at once: fewer hops save more than fewer bytes.
const SMALL: usize = 32 * 1024;

/// Bytes of each rank that `reduce_scatter` works on at a time: it bounds the memory of a call.
pub(super) const PART: usize = 1024 * 1024;

/// The reduced parts for ranks of one host.
type Sums = Vec<(Rank, Vec<u8>)>;

impl Mixed {
    /// All ranks of a host meet before one of them tells another host.
    pub(super) fn barrier(&mut self, mut course: MixedCall<'_>) -> Result<(), GroupFailure> {
        self.on_host(&course, |shm, step| shm.run(step, HostCollective::Barrier))?;
        let grid = Arc::clone(&self.grid);
        self.between_hosts(&mut course, |rank| Transfer {
            send: grid.serves(rank).then_some(&[]),
            receive: grid.is_served_by(rank).then_some(&mut []),
        })
    }

    pub(super) fn all_reduce(
        &mut self,
        mut course: MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        if data.len() <= SMALL {
            return self.all_reduce_little(course, data, op);
        }
        for range in blocks(data.len(), self.grid.streams()) {
            self.all_reduce_block(&mut course, &mut data[range], op)?;
        }
        Ok(())
    }

    /// Every rank gets the reduction over its host, and that of each other host from one rank there.
    fn all_reduce_little(
        &mut self,
        mut course: MixedCall<'_>,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let within = undivided(op);
        self.on_host(&course, |shm, step| {
            shm.run(step, HostCollective::AllReduce { data: &mut *data, op: within })
        })?;
        let arrivals = self.exchange_little(&mut course, data)?;
        let sources: Vec<&[u8]> = arrivals.iter().map(Vec::as_slice).collect();
        reduce::reduce_into((course.call().data_type, op), data, &sources, Some(self.world));
        Ok(())
    }

    /// The data of each host, from one of its ranks.
    fn exchange_little(
        &mut self,
        course: &mut MixedCall<'_>,
        own: &[u8],
    ) -> Result<Vec<Vec<u8>>, GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let mut arrivals = vec![own.to_vec(); grid.count()];
        let mut slots: Vec<Option<&mut [u8]>> = arrivals.iter_mut().map(|it| Some(&mut it[..])).collect();
        self.between_hosts(course, |rank| Transfer {
            send: grid.serves(rank).then_some(own),
            receive: if grid.is_served_by(rank) { slots[grid.place(rank).0].take() } else { None },
        })?;
        Ok(arrivals)
    }

    pub(super) fn broadcast(
        &mut self,
        mut course: MixedCall<'_>,
        data: &mut [u8],
        root: Rank,
    ) -> Result<(), GroupFailure> {
        if data.len() <= SMALL {
            return self.broadcast_little(course, data, root);
        }
        for range in blocks(data.len(), self.grid.streams()) {
            self.broadcast_block(&mut course, &mut data[range], root)?;
        }
        Ok(())
    }

    /// The root sends to one rank of each other host.
    fn broadcast_little(
        &mut self,
        mut course: MixedCall<'_>,
        data: &mut [u8],
        root: Rank,
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let (host, index) = grid.place(root);
        if grid.host == host && grid.index == index {
            let data: &[u8] = data;
            let send =
                |rank| grid.place(rank).0 != host && grid.counterpart(grid.place(rank).0, index) == rank;
            self.between_hosts(&mut course, |rank| Transfer {
                send: send(rank).then_some(data),
                receive: None,
            })?;
        } else if grid.host != host && grid.counterpart(grid.host, index) == grid.local()[grid.index] {
            let mut data = Some(&mut *data);
            self.between_hosts(&mut course, |rank| Transfer {
                send: None,
                receive: if rank == root { data.take() } else { None },
            })?;
        }
        let first = grid.place(grid.counterpart(grid.host, index)).1;
        let root = Rank(u32::try_from(first).unwrap_or(u32::MAX));
        self.on_host(&course, |shm, step| shm.run(step, HostCollective::Broadcast { data, root }))
    }

    /// Each host reduces the parts of all ranks, and sends every other host the parts of its ranks.
    pub(super) fn reduce_scatter(
        &mut self,
        mut course: MixedCall<'_>,
        (input, output): (&[u8], &mut [u8]),
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let length = output.len();
        for start in (0..length.max(1)).step_by(PART) {
            let range = start..length.min(start + PART);
            let part = |rank: Rank| shifted(&range, rank.index() * length);
            let mut sums = self.reduce_rows(&course, (input, range.len()), (&part, op))?;
            let grid = Arc::clone(&self.grid);
            let mut arrivals = vec![vec![0; range.len()]; grid.count()];
            arrivals[grid.host] = sums[grid.host].pop().map(|(_, sum)| sum).unwrap_or_default();
            let mut slots: Vec<Option<&mut [u8]>> = arrivals.iter_mut().map(|it| Some(&mut it[..])).collect();
            let sum_for = |rank: Rank| sums[grid.place(rank).0].iter().find(|(it, _)| *it == rank);
            self.between_hosts(&mut course, |rank| Transfer {
                send: if grid.serves(rank) { sum_for(rank).map(|(_, sum)| &sum[..]) } else { None },
                receive: if grid.is_served_by(rank) { slots[grid.place(rank).0].take() } else { None },
            })?;
            let sources: Vec<&[u8]> = arrivals.iter().map(Vec::as_slice).collect();
            let kind = (course.call().data_type, op);
            reduce::reduce_into(kind, &mut output[range], &sources, Some(self.world));
        }
        Ok(())
    }

    /// Reduces over this host for the ranks that this one serves, by host; on its own host for itself.
    fn reduce_rows(
        &mut self,
        course: &MixedCall<'_>,
        (input, length): (&[u8], usize),
        (part, op): (&dyn Fn(Rank) -> Range<usize>, ReduceOp),
    ) -> Result<Vec<Sums>, GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let mut all = Vec::with_capacity(grid.count());
        for host in 0..grid.count() {
            let mut sums = Vec::new();
            for row in grid.rows(host) {
                let parts: Vec<Range<usize>> = row.iter().map(|it| it.map_or(0..0, part)).collect();
                let own = parts[grid.index].clone();
                let mut sum = input[own].to_vec();
                self.on_host(course, |shm, step| shm.reduce_part_to(step, (input, &mut sum), (&parts, op)))?;
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
        mut course: MixedCall<'_>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let length = input.len();
        let me = grid.local()[grid.index];
        let part = |rank: Rank| shifted(&(0..length), rank.index() * length);
        output[part(me)].copy_from_slice(input);
        let mut slots = layout::split_mut(output, vec![length; self.world as usize]).into_iter();
        self.between_hosts(&mut course, |rank| {
            // One slot for each rank, with this one.
            let slot = slots.next();
            Transfer {
                send: grid.is_served_by(rank).then_some(input),
                receive: if grid.serves(rank) { slot } else { None },
            }
        })?;
        for row in (0..grid.count()).flat_map(|host| grid.rows(host)) {
            let parts: Vec<Range<usize>> = row.iter().map(|it| it.map_or(0..0, part)).collect();
            self.on_host(&course, |shm, step| shm.share_parts(step, output, &parts))?;
        }
        Ok(())
    }
}

/// Within a host a mean is a sum, which is divided once at the end.
fn undivided(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Mean { ReduceOp::Sum } else { op }
}

fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
