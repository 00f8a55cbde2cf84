//! Maps ranks to hosts, and each rank to its counterparts on other hosts. Pure.

use rankrun_contract::rank::Rank;

/// The hosts of a group, as one rank sees them.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    /// The ranks of each host, in rank order.
    hosts: Vec<Vec<Rank>>,
    /// Host and index on it, for each rank.
    positions: Vec<(usize, usize)>,
    pub(crate) host: usize,
    pub(crate) index: usize,
}

impl Grid {
    /// `hosts` is the host of each rank, numbered from 0 in the order of their first ranks.
    pub(crate) fn new(hosts: &[u32], me: Rank) -> Self {
        let count = hosts.iter().max().map_or(1, |&last| last as usize + 1);
        let mut grid = Self { hosts: vec![Vec::new(); count], positions: Vec::new(), host: 0, index: 0 };
        for (&host, rank) in hosts.iter().zip(0..) {
            let members = &mut grid.hosts[host as usize];
            grid.positions.push((host as usize, members.len()));
            members.push(Rank(rank));
        }
        (grid.host, grid.index) = grid.positions[me.index()];
        grid
    }

    pub(crate) fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks of a host, in rank order.
    pub(crate) fn ranks_on_host(&self, host: usize) -> &[Rank] {
        &self.hosts[host]
    }

    /// The ranks of this rank's host.
    pub(crate) fn local_ranks(&self) -> &[Rank] {
        self.ranks_on_host(self.host)
    }

    /// The host of a rank, and its index there.
    pub(crate) fn position(&self, rank: Rank) -> (usize, usize) {
        self.positions[rank.index()]
    }

    /// Ranks of a host that exchange data with other hosts at once: as many as the smallest host has.
    pub(crate) fn stream_count(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The rank with this one's index, `hosts` hosts further.
    pub(crate) fn rank_hosts_ahead(&self, hosts: usize) -> Rank {
        self.counterpart((self.host + hosts) % self.host_count(), self.index)
    }

    /// The rank of a host that serves index `index` of another host: the same index if
    /// the host has as many ranks.
    pub(crate) fn counterpart(&self, host: usize, index: usize) -> Rank {
        self.hosts[host][index % self.hosts[host].len()]
    }

    /// Whether this rank serves `rank`, which is on another host.
    pub(crate) fn serves(&self, rank: Rank) -> bool {
        let (host, index) = self.position(rank);
        host != self.host && index % self.local_ranks().len() == self.index
    }

    /// Whether `rank`, which is on another host, serves this rank.
    pub(crate) fn is_served_by(&self, rank: Rank) -> bool {
        let host = self.position(rank).0;
        host != self.host && self.counterpart(host, self.index) == rank
    }

    /// The ranks of a host in rows with one entry for each rank of this host, which does the work for that
    /// entry; `None` fills the last row.
    pub(crate) fn rows(&self, host: usize) -> impl Iterator<Item = Vec<Option<Rank>>> + '_ {
        let length = self.local_ranks().len();
        self.hosts[host].chunks(length).map(move |row| {
            row.iter().copied().map(Some).chain(std::iter::repeat(None)).take(length).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hosts of any sizes, numbered in the order of their first ranks.
    fn layouts() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::vec(0u32..4, 1..12).prop_map(|keys| {
            let mut known = Vec::new();
            let mut number = |key: u32| {
                known.iter().position(|known_key| *known_key == key).unwrap_or_else(|| {
                    known.push(key);
                    known.len() - 1
                }) as u32
            };
            keys.into_iter().map(&mut number).collect()
        })
    }

    proptest! {
        #[test]
        fn rank_is_served_by_one_rank_of_each_other_host(hosts in layouts()) {
            let grids: Vec<Grid> = (0..hosts.len()).map(|rank| Grid::new(&hosts, Rank(rank as u32))).collect();
            for (grid, rank) in grids.iter().zip(0..).map(|(grid, rank)| (grid, Rank(rank))) {
                for host in (0..grid.host_count()).filter(|&host| host != grid.host) {
                    let servers: Vec<Rank> =
                        grid.ranks_on_host(host).iter().copied().filter(|server| grids[server.index()].serves(rank)).collect();
                    prop_assert_eq!(&servers, &[grid.counterpart(host, grid.index)]);
                    prop_assert!(grid.is_served_by(servers[0]));
                    let rows: Vec<_> = grid.rows(host).collect();
                    let served = rows.iter().filter_map(|row| row[grid.index]);
                    let expected = grid.ranks_on_host(host).iter().copied().filter(|&other| grid.serves(other));
                    prop_assert!(served.eq(expected));
                }
                prop_assert!(!grid.serves(rank) && !grid.is_served_by(rank));
                prop_assert_eq!(grid.local_ranks()[grid.index], rank);
                prop_assert_eq!(grid.position(rank), (grid.host, grid.index));
            }
        }

        #[test]
        fn stream_neighbors_form_ring_over_hosts(hosts in layouts()) {
            for rank in 0..hosts.len() {
                let grid = Grid::new(&hosts, Rank(rank as u32));
                if grid.index < grid.stream_count() {
                    let next = Grid::new(&hosts, grid.rank_hosts_ahead(1));
                    prop_assert_eq!((next.host, next.index), ((grid.host + 1) % grid.host_count(), grid.index));
                    prop_assert_eq!(next.rank_hosts_ahead(grid.host_count() - 1), Rank(rank as u32));
                }
            }
        }
    }
}
