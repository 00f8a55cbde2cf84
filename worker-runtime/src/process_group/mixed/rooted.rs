//! Calls with a root, and messages between two ranks.

use std::ops::Range;
use std::sync::Arc;

use rankrun_contract::rank::Rank;

use super::calls::REDUCE_SCATTER_BYTES;
use super::{Mixed, MixedCall};
use crate::process_group::collective::HostCollective;
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::tcp::exchange::Transfer;
use crate::process_group::transport::Transport;
use crate::process_group::{layout, reduce};

impl Mixed {
    /// Each host reduces its data, and one rank of it sends the result to the root.
    pub(super) fn reduce(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        (op, root): (ReduceOp, Rank),
    ) -> Result<(), GroupFailure> {
        for start in (0..data.len().max(1)).step_by(REDUCE_SCATTER_BYTES) {
            let range = start..data.len().min(start + REDUCE_SCATTER_BYTES);
            self.reduce_part(&mut mixed_call, (data, range), (op, root))?;
        }
        Ok(())
    }

    fn reduce_part(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        (data, range): (&mut [u8], Range<usize>),
        (op, root): (ReduceOp, Rank),
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let (me, (host, index)) = (grid.local_ranks()[grid.index], grid.position(root));
        // On the root's host that rank is the root.
        let counterpart = |host| grid.counterpart(host, index);
        let mut parts = vec![0..0; grid.local_ranks().len()];
        parts[grid.position(counterpart(grid.host)).1] = range.clone();
        let mut sum = data[parts[grid.index].clone()].to_vec();
        self.run_on_host(mixed_call, |shm, step| {
            shm.reduce_own_part_into(step, (data, &mut sum), (&parts, op))
        })?;
        if me != counterpart(grid.host) {
            return Ok(());
        }
        if me != root {
            let sum = &sum[..];
            return self.exchange_between_hosts(mixed_call, |rank| Transfer {
                send: (rank == root).then_some(sum),
                receive: None,
            });
        }
        let mut arrivals = vec![vec![0; range.len()]; grid.host_count()];
        arrivals[host] = sum;
        let mut slots: Vec<Option<&mut [u8]>> =
            arrivals.iter_mut().map(|arrival| Some(&mut arrival[..])).collect();
        self.exchange_between_hosts(mixed_call, |rank| {
            let from = grid.position(rank).0;
            let is_due = from != host && counterpart(from) == rank;
            Transfer { send: None, receive: if is_due { slots[from].take() } else { None } }
        })?;
        let sources: Vec<&[u8]> = arrivals.iter().map(Vec::as_slice).collect();
        reduce::reduce_into((mixed_call.call().data_type, op), &mut data[range], &sources, Some(self.world));
        Ok(())
    }

    /// The root receives from other hosts first: a late rank of its own host delays no other host.
    pub(super) fn gather(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        (input, output): (&[u8], Option<&mut [u8]>),
        (counts, root): (&[usize], Rank),
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let (host, index) = grid.position(root);
        if grid.host != host {
            return self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: (rank == root).then_some(input),
                receive: None,
            });
        }
        let own: Vec<usize> = grid.local_ranks().iter().map(|rank| counts[rank.index()]).collect();
        let root = Rank(u32::try_from(index).unwrap_or(u32::MAX));
        let Some(output) = output else {
            let work = HostCollective::Gather { input, output: None, counts: &own, root };
            return self.run_on_host(&mixed_call, |shm, step| shm.run(step, work));
        };
        let size = mixed_call.call().data_type.size();
        let mut slots: Vec<_> = layout::split_mut_by_lengths(output, counts.iter().map(|count| count * size))
            .into_iter()
            .map(Some)
            .collect();
        self.exchange_between_hosts(&mut mixed_call, |rank| {
            let is_due = grid.position(rank).0 != host;
            Transfer { send: None, receive: if is_due { slots[rank.index()].take() } else { None } }
        })?;
        let mut gathered = input.to_vec();
        if self.shm.is_some() {
            gathered = vec![0; own.iter().sum::<usize>() * size];
            let work = HostCollective::Gather { input, output: Some(&mut gathered), counts: &own, root };
            self.run_on_host(&mixed_call, |shm, step| shm.run(step, work))?;
        }
        let parts = layout::split_by_lengths(&gathered, own.iter().map(|count| count * size));
        for (part, slot) in parts.into_iter().zip(slots.into_iter().flatten()) {
            slot.copy_from_slice(part);
        }
        Ok(())
    }

    /// The root sends to other hosts first, as it receives from them first in `gather`.
    pub(super) fn scatter(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        (input, output): (Option<&[u8]>, &mut [u8]),
        (counts, root): (&[usize], Rank),
    ) -> Result<(), GroupFailure> {
        let grid = Arc::clone(&self.grid);
        let (host, index) = grid.position(root);
        if grid.host != host {
            let mut output = Some(output);
            return self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: None,
                receive: if rank == root { output.take() } else { None },
            });
        }
        let own: Vec<usize> = grid.local_ranks().iter().map(|rank| counts[rank.index()]).collect();
        let local = Rank(u32::try_from(index).unwrap_or(u32::MAX));
        let mut local_input = None;
        if let Some(input) = input {
            let size = mixed_call.call().data_type.size();
            let parts = layout::split_by_lengths(input, counts.iter().map(|count| count * size));
            self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: (grid.position(rank).0 != host).then_some(parts[rank.index()]),
                receive: None,
            })?;
            output.copy_from_slice(parts[root.index()]);
            local_input = Some(
                grid.local_ranks().iter().flat_map(|rank| parts[rank.index()]).copied().collect::<Vec<u8>>(),
            );
        }
        let work =
            HostCollective::Scatter { input: local_input.as_deref(), output, counts: &own, root: local };
        self.run_on_host(&mixed_call, |shm, step| shm.run(step, work))
    }

    pub(super) fn send(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &[u8],
        to: Rank,
    ) -> Result<(), GroupFailure> {
        match self.grid.position(to) {
            (host, index) if host == self.grid.host => {
                self.run_on_host(&mixed_call, |shm, step| shm.send(step, data, index))
            }
            _ => self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                send: (rank == to).then_some(data),
                receive: None,
            }),
        }
    }

    pub(super) fn receive(
        &mut self,
        mut mixed_call: MixedCall<'_>,
        data: &mut [u8],
        from: Rank,
    ) -> Result<(), GroupFailure> {
        match self.grid.position(from) {
            (host, index) if host == self.grid.host => {
                self.run_on_host(&mixed_call, |shm, step| shm.receive(step, data, index))
            }
            _ => {
                let mut data = Some(data);
                self.exchange_between_hosts(&mut mixed_call, |rank| Transfer {
                    send: None,
                    receive: if rank == from { data.take() } else { None },
                })
            }
        }
    }
}
