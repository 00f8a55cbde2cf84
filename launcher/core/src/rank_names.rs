//! Names of several ranks, short also for many. Pure.

use std::collections::BTreeSet;

use rankrun_contract::rank::Rank;

/// `rank 3`, or `ranks 0, 2-7`, in ascending order.
#[must_use]
pub fn rank_names(ranks: impl IntoIterator<Item = Rank>) -> String {
    let ranks: BTreeSet<u32> = ranks.into_iter().map(|rank| rank.0).collect();
    let names = number_runs(&ranks);
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// Three and more consecutive numbers are a range: `0, 1`, `3-5`.
#[must_use]
pub fn number_runs(numbers: &BTreeSet<u32>) -> Vec<String> {
    let numbers: Vec<u32> = numbers.iter().copied().collect();
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| match run {
        [first, .., last] if run.len() > 2 => format!("{first}-{last}"),
        run => run.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_are_shown_as_range() {
        let names = |ranks: &[u32]| rank_names(ranks.iter().copied().map(Rank));
        assert_eq!(names(&[3]), "rank 3");
        assert_eq!(names(&[1, 0]), "ranks 0, 1");
        assert_eq!(names(&[7, 2, 3, 4, 0, 9, 10]), "ranks 0, 2-4, 7, 9, 10");
    }
}
