//! The schedule of a reduction around a ring of three or more hosts. Pure.
//!
//! The data has one segment for each host. In the first round a segment travels from host to host, and each
//! adds its values. In the second round the complete segment travels to the hosts that lack it. Each host
//! always sends one segment and receives another, so that every byte crosses each link less than twice.
//! Segments travel in chunks: one is reduced while the next is under way.

use std::ops::Range;

use crate::process_group::layout;

/// Bytes of a chunk: two hosts wait for each other once per chunk, and a call needs memory for one.
pub(crate) const CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// One step of a host: it sends one range to the next host and receives another from the previous one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) send: Range<usize>,
    pub(crate) receive: Range<usize>,
    pub(crate) action: HopAction,
}

/// What to do with the received range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HopAction {
    /// Add it to this host's values.
    Reduce,
    /// Add it; the sum is complete then.
    Finish,
    /// Replace this host's values.
    Keep,
}

/// The hops of host `me`, as many as on every host. `bytes` is a multiple of
/// `element`, the size of an element.
pub(crate) fn all_reduce_hops(
    (bytes, element): (usize, usize),
    hosts: usize,
    me: usize,
) -> impl Iterator<Item = Hop> {
    let segments: Vec<Range<usize>> = layout::partition(bytes / element, hosts)
        .into_iter()
        .map(|elements| elements.start * element..elements.end * element)
        .collect();
    // The first segment is the longest.
    let chunks = segments[0].len().div_ceil(CHUNK_BYTES);
    let before = move |steps: usize| (me + 2 * hosts - steps) % hosts;
    (0..2 * (hosts - 1)).flat_map(move |step| {
        let action = match step {
            step if step + 2 < hosts => HopAction::Reduce,
            step if step + 2 == hosts => HopAction::Finish,
            _ => HopAction::Keep,
        };
        let (send, receive) = (segments[before(step)].clone(), segments[before(step + 1)].clone());
        (0..chunks).map(move |number| Hop {
            send: chunk(&send, number),
            receive: chunk(&receive, number),
            action,
        })
    })
}

/// A chunk of a segment; empty beyond its end.
pub(crate) fn chunk(segment: &Range<usize>, number: usize) -> Range<usize> {
    let bound = |number: usize| (segment.start + number * CHUNK_BYTES).min(segment.end);
    bound(number)..bound(number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Which hosts' values are in each element on each host.
        #[test]
        fn ring_all_reduce_gives_each_host_values_of_all_hosts(
            hosts in 2usize..6,
            elements in 0usize..40,
            large in any::<bool>(),
        ) {
            // Elements of a quarter of a chunk, so that segments have several.
            let element = if large { CHUNK_BYTES / 4 } else { 4 };
            let schedules: Vec<Vec<Hop>> =
                (0..hosts).map(|me| all_reduce_hops((elements * element, element), hosts, me).collect()).collect();
            let mut values: Vec<Vec<Vec<usize>>> = (0..hosts).map(|me| vec![vec![me]; elements]).collect();
            let mut finished = vec![0; elements];
            for number in 0..schedules[0].len() {
                let sent: Vec<Vec<Vec<usize>>> = (0..hosts)
                    .map(|me| values[me][in_elements(&schedules[me][number].send, element)].to_vec())
                    .collect();
                for me in 0..hosts {
                    let (hop, from) = (&schedules[me][number], (me + hosts - 1) % hosts);
                    prop_assert_eq!(&hop.receive, &schedules[from][number].send);
                    prop_assert!(hop.receive.len() <= CHUNK_BYTES);
                    prop_assert!(hop.send.end <= hop.receive.start || hop.receive.end <= hop.send.start);
                    let range = in_elements(&hop.receive, element);
                    if hop.action == HopAction::Finish {
                        finished[range.clone()].iter_mut().for_each(|count| *count += 1);
                    }
                    for (own, other) in values[me][range].iter_mut().zip(&sent[from]) {
                        if hop.action == HopAction::Keep {
                            own.clone_from(other);
                        } else {
                            own.extend(other);
                        }
                    }
                }
            }
            prop_assert!(finished.iter().all(|&count| count == 1));
            for element in values.iter_mut().flatten() {
                element.sort_unstable();
                prop_assert_eq!(&*element, &(0..hosts).collect::<Vec<_>>());
            }
            let all_are_as_long = schedules.windows(2).all(|pair| pair[0].len() == pair[1].len());
            prop_assert!(all_are_as_long);
        }
    }

    fn in_elements(range: &Range<usize>, element: usize) -> Range<usize> {
        range.start / element..range.end / element
    }
}
