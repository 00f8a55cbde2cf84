//! Maps ranks of a group to ranks of the job. Pure.

use std::fmt;
use std::sync::Arc;

use rankrun_contract::rank::Rank;

/// The members of a group as ranks of the job, in the order of their ranks within the group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// `None` if both numberings are the same.
    in_job: Option<Arc<[Rank]>>,
}

impl Members {
    /// The members of the group of all ranks.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The members of a sub-group, given as ranks of this group.
    #[must_use]
    pub fn subset(&self, ranks: &[Rank]) -> Self {
        Self { in_job: Some(ranks.iter().map(|&rank| self.global_rank(rank)).collect()) }
    }

    /// The rank within the job of a rank of the group.
    #[must_use]
    pub fn global_rank(&self, rank: Rank) -> Rank {
        let known = self.in_job.as_ref().and_then(|ranks| ranks.get(rank.index()));
        known.copied().unwrap_or(rank)
    }

    /// Formats a rank of the group: `rank 1`, or `rank 1 (rank 3 of the job)` if the numbers differ.
    pub fn display_rank(&self, rank: Rank) -> impl fmt::Display + use<> {
        Name { rank, in_job: self.global_rank(rank) }
    }
}

struct Name {
    rank: Rank,
    in_job: Rank,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if self.rank == self.in_job { Ok(()) } else { write!(f, " (rank {} of the job)", self.in_job) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_subset_maps_to_global_ranks() {
        let odd = Members::all().subset(&[Rank(1), Rank(3), Rank(5)]);
        let last = odd.subset(&[Rank(2), Rank(1)]);
        assert_eq!((last.global_rank(Rank(0)), last.global_rank(Rank(1))), (Rank(5), Rank(3)));
        assert_eq!(last.display_rank(Rank(1)).to_string(), "rank 1 (rank 3 of the job)");
    }

    #[test]
    fn rank_equal_to_global_rank_is_displayed_once() {
        assert_eq!(Members::all().display_rank(Rank(7)).to_string(), "rank 7");
        assert_eq!(Members::all().subset(&[Rank(0), Rank(2)]).display_rank(Rank(0)).to_string(), "rank 0");
    }
}
