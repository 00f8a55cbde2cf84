//! The transport over TCP: a connection for every pair of ranks. The store delivers the addresses once (`join`). It
//! carries the calls of a group between hosts, and decides no order of calls: `process_group` does.

pub(crate) mod exchange;
pub(crate) mod join;
mod judge;
pub(crate) mod mesh;
mod peer;
mod progress;
mod wait_policy;

use std::ops::Range;

use rankrun_contract::rank::{Rank, WorldSize};

use super::collective::HostCollective;
use super::element::{DataType, ReduceOp};
use super::error::GroupFailure;
use super::message::Call;
use super::transport::{Step, Transport, TransportProbe};
use super::{layout, reduce};
use exchange::{Exchange, Swap, Transfer, rank_from_index};
use mesh::Mesh;

/// Bytes that a reduction works on at a time: it bounds the memory of a call.
const BLOCK_LEN: usize = 4 * 1024 * 1024;

/// A rank with a connection to every other rank.
#[derive(Debug)]
pub(crate) struct Tcp {
    rank: Rank,
    world: usize,
    mesh: Mesh,
}

impl Tcp {
    pub(crate) fn new(rank: Rank, world_size: WorldSize, mesh: Mesh) -> Self {
        Self { rank, world: world_size.get() as usize, mesh }
    }

    /// Exchanges messages with any of the ranks at once; the transfer of this rank is ignored.
    pub(crate) fn exchange<'a>(
        &mut self,
        exchange: &Exchange,
        mut transfer: impl FnMut(Rank) -> Transfer<'a>,
    ) -> Result<(), GroupFailure> {
        let all = (0..self.world).map(|rank| {
            let rank = rank_from_index(rank);
            let transfer = transfer(rank);
            if rank == self.rank { Transfer::default() } else { transfer }
        });
        self.mesh.exchange(exchange, all.collect())
    }

    /// Checks another part of the transport while this rank waits here.
    pub(crate) fn set_probe(&mut self, probe: Box<dyn TransportProbe>) {
        self.mesh.set_probe(probe);
    }

    /// Reads messages of other ranks, while this rank waits elsewhere.
    pub(crate) fn read_messages(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.mesh.read_messages(step)
    }

    /// Reduces the data of this rank and another one; `is_first` tells that this
    /// rank comes first in rank order.
    pub(crate) fn swap(
        &mut self,
        exchange: &Exchange,
        (data, other): (&mut [u8], Rank),
        (op, is_first, finish): (ReduceOp, bool, Option<u32>),
    ) -> Result<(), GroupFailure> {
        let kind = (exchange.call.data_type, op);
        let fold =
            |own: &mut [u8], received: &[u8]| reduce::fold_two(kind, own, (received, is_first), finish);
        self.mesh.swap(exchange, other, Swap { data, fold: &fold })
    }

    /// Notes that this rank makes the call, although it may have no message in it.
    pub(crate) fn record_call(&mut self, call: Call) {
        self.mesh.record_call(call);
    }

    fn send(&mut self, exchange: &Exchange, data: &[u8], to: Rank) -> Result<(), GroupFailure> {
        self.exchange(exchange, |rank| Transfer { send: (rank == to).then_some(data), receive: None })
    }

    fn receive(&mut self, exchange: &Exchange, data: &mut [u8], from: Rank) -> Result<(), GroupFailure> {
        let mut data = Some(data);
        self.exchange(exchange, |rank| Transfer {
            send: None,
            receive: if rank == from { data.take() } else { None },
        })
    }

    fn reduce(
        &mut self,
        mut exchange: Exchange,
        data: &mut [u8],
        (op, root): (ReduceOp, Rank),
    ) -> Result<(), GroupFailure> {
        for range in block_ranges(data.len(), self.block_len(&exchange)) {
            let block = &mut data[range];
            if self.rank == root {
                let mut arrivals = vec![0; block.len() * self.world];
                let mut slots =
                    layout::split_mut_by_lengths(&mut arrivals, vec![block.len(); self.world]).into_iter();
                self.exchange(&exchange, |_| Transfer { send: None, receive: slots.next() })?;
                arrivals[self.rank.index() * block.len()..][..block.len()].copy_from_slice(block);
                self.reduce_arrivals(&exchange, &mut arrivals, block, op);
            } else {
                self.send(&exchange, block, root)?;
            }
            exchange.number += 1;
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        mut exchange: Exchange,
        (input, output): (&[u8], &mut [u8]),
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let length = output.len();
        for range in block_ranges(length, self.block_len(&exchange)) {
            let part = |rank: Rank| &input[rank.index() * length..][range.clone()];
            let mut arrivals = vec![0; range.len() * self.world];
            let mut slots =
                layout::split_mut_by_lengths(&mut arrivals, vec![range.len(); self.world]).into_iter();
            self.exchange(&exchange, |rank| Transfer { send: Some(part(rank)), receive: slots.next() })?;
            arrivals[self.rank.index() * range.len()..][..range.len()].copy_from_slice(part(self.rank));
            self.reduce_arrivals(&exchange, &mut arrivals, &mut output[range], op);
            exchange.number += 1;
        }
        Ok(())
    }

    /// Bytes of each rank that are worked on at a time.
    fn block_len(&self, exchange: &Exchange) -> usize {
        let element = exchange.call.data_type.size().max(1);
        (BLOCK_LEN / self.world / element).max(1) * element
    }

    /// Reduces the data of all ranks in rank order.
    fn reduce_arrivals(&self, exchange: &Exchange, arrivals: &mut [u8], output: &mut [u8], op: ReduceOp) {
        let (total, arrivals_of_others) = arrivals.split_at_mut(output.len());
        let arrivals_of_others: Vec<&[u8]> = arrivals_of_others.chunks(output.len().max(1)).collect();
        reduce::fold((exchange.call.data_type, op), total, &arrivals_of_others, Some(rank_count(self.world)));
        output.copy_from_slice(total);
    }

    fn all_reduce(
        &mut self,
        mut exchange: Exchange,
        data: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        if self.world == 2 {
            // As many bytes as by parts, but only one wait for the other rank.
            let other = rank_from_index(1 - self.rank.index());
            return self.swap(&exchange, (data, other), (op, self.rank < other, Some(2)));
        }
        block_ranges(data.len(), BLOCK_LEN)
            .into_iter()
            .try_for_each(|range| self.reduce_block(&mut exchange, &mut data[range], op))
    }

    /// Every rank reduces its own part of the block, then sends the result to all others.
    fn reduce_block(
        &mut self,
        exchange: &mut Exchange,
        block: &mut [u8],
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let (me, world, data_type) = (self.rank.index(), self.world, exchange.call.data_type);
        let parts = partition_elements(block.len(), data_type, world);
        let own = parts[me].clone();

        let mut arrivals = vec![0; own.len() * world];
        let mut slots = layout::split_mut_by_lengths(&mut arrivals, vec![own.len(); world]).into_iter();
        self.exchange(exchange, |rank| Transfer {
            send: Some(&block[parts[rank.index()].clone()]),
            receive: slots.next(),
        })?;
        arrivals[me * own.len()..][..own.len()].copy_from_slice(&block[own.clone()]);
        self.reduce_arrivals(exchange, &mut arrivals, &mut block[own], op);

        exchange.number += 1;
        let mut pieces = layout::split_mut_by_lengths(block, parts.iter().map(ExactSizeIterator::len));
        let own: &mut [u8] = std::mem::take(&mut pieces[me]);
        let own: &[u8] = own;
        let mut pieces = pieces.into_iter();
        self.exchange(exchange, |_| Transfer { send: Some(own), receive: pieces.next() })?;
        exchange.number += 1;
        Ok(())
    }
}

impl Transport for Tcp {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), GroupFailure> {
        let me = self.rank;
        let Step { call, deadline, timeout } = *step;
        let exchange = Exchange { call, number: 0, deadline, timeout };
        match work {
            HostCollective::Barrier => {
                self.exchange(&exchange, |_| Transfer { send: Some(&[]), receive: Some(&mut []) })
            }
            HostCollective::Broadcast { data, root } if root == me => {
                let data: &[u8] = data;
                self.exchange(&exchange, |_| Transfer { send: Some(data), receive: None })
            }
            HostCollective::Broadcast { data, root } => self.receive(&exchange, data, root),
            HostCollective::AllReduce { data, op } => self.all_reduce(exchange, data, op),
            HostCollective::Reduce { data, op, root } => self.reduce(exchange, data, (op, root)),
            HostCollective::ReduceScatter { input, output, op } => {
                self.reduce_scatter(exchange, (input, output), op)
            }
            HostCollective::AllGather { input, output } => {
                output[me.index() * input.len()..][..input.len()].copy_from_slice(input);
                let mut slots =
                    layout::split_mut_by_lengths(output, vec![input.len(); self.world]).into_iter();
                self.exchange(&exchange, |_| Transfer { send: Some(input), receive: slots.next() })
            }
            HostCollective::Gather { input, output: Some(output), counts, .. } => {
                let lengths = counts.iter().map(|count| count * call.data_type.size());
                let mut slots = layout::split_mut_by_lengths(output, lengths);
                slots[me.index()].copy_from_slice(input);
                let mut slots = slots.into_iter();
                self.exchange(&exchange, |_| Transfer { send: None, receive: slots.next() })
            }
            HostCollective::Scatter { input: Some(input), output, counts, .. } => {
                let parts =
                    layout::split_by_lengths(input, counts.iter().map(|count| count * call.data_type.size()));
                output.copy_from_slice(parts[me.index()]);
                self.exchange(&exchange, |rank| Transfer { send: Some(parts[rank.index()]), receive: None })
            }
            HostCollective::Gather { input: data, output: None, root: to, .. }
            | HostCollective::Send { data, to } => self.send(&exchange, data, to),
            HostCollective::Scatter { output: data, input: None, root: from, .. }
            | HostCollective::Receive { data, from } => self.receive(&exchange, data, from),
        }
    }

    fn leave(&mut self) {
        self.mesh.leave();
    }

    fn close(&mut self) {
        self.mesh.close();
    }
}

/// [`layout::partition_elements`] of whole elements, in bytes.
fn partition_elements(bytes: usize, data_type: DataType, parts: usize) -> Vec<Range<usize>> {
    let size = data_type.size().max(1);
    let of_elements = layout::partition(bytes / size, parts);
    of_elements.into_iter().map(|part| part.start * size..part.end * size).collect()
}

/// Adjacent ranges of at most `block` bytes. Zero bytes give one empty range, since
/// ranks meet for that as well.
fn block_ranges(bytes: usize, block: usize) -> Vec<Range<usize>> {
    let starts = (0..bytes.max(1)).step_by(block);
    starts.map(|start| start..bytes.min(start.saturating_add(block))).collect()
}

fn rank_count(world: usize) -> u32 {
    u32::try_from(world).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_adjacent_and_zero_bytes_give_one_empty_block() {
        assert_eq!(block_ranges(7, 3), [0..3, 3..6, 6..7]);
        assert_eq!(block_ranges(6, 3), [0..3, 3..6]);
        assert_eq!(block_ranges(0, 3), vec![0..0; 1]);
    }
}
