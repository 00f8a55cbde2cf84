//! Computes the members of sub-groups. Pure.

use rankrun_contract::rank::Rank;

/// The color and key of one rank in a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitChoice {
    /// Ranks with the same color become a group; `None` gets no group.
    pub(crate) color: Option<u32>,
    /// Sorts the ranks of a color.
    pub(crate) key: u32,
}

impl SplitChoice {
    pub(crate) fn encode(self) -> [i64; 2] {
        [self.color.map_or(-1, i64::from), i64::from(self.key)]
    }

    /// Values that no rank sends count as no color, and as the last key.
    pub(crate) fn decode([color, key]: [i64; 2]) -> Self {
        Self { color: u32::try_from(color).ok(), key: u32::try_from(key).unwrap_or(u32::MAX) }
    }
}

/// The members of the sub-group of `me`, by key, and by rank where keys are equal. `choices` are those
/// of all ranks in rank order.
pub(crate) fn subgroup_members(choices: &[SplitChoice], me: Rank) -> Option<Vec<Rank>> {
    let color = choices.get(me.index())?.color?;
    let mut members: Vec<(u32, Rank)> = (0..)
        .zip(choices)
        .filter(|(_, choice)| choice.color == Some(color))
        .map(|(rank, choice)| (choice.key, Rank(rank)))
        .collect();
    members.sort_unstable();
    Some(members.into_iter().map(|(_, rank)| rank).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_choices(all: &[(Option<u32>, u32)]) -> Vec<SplitChoice> {
        all.iter().map(|&(color, key)| SplitChoice { color, key }).collect()
    }

    fn ranks(all: &[u32]) -> Option<Vec<Rank>> {
        Some(all.iter().copied().map(Rank).collect())
    }

    #[test]
    fn split_members_are_ordered_by_key_then_rank() {
        let all = split_choices(&[(Some(7), 1), (None, 0), (Some(7), 0), (Some(0), 0), (Some(7), 1)]);
        for rank in [0, 2, 4] {
            assert_eq!(subgroup_members(&all, Rank(rank)), ranks(&[2, 0, 4]));
        }
        assert_eq!(subgroup_members(&all, Rank(3)), ranks(&[3]));
        assert_eq!(subgroup_members(&all, Rank(1)), None);
    }

    proptest! {
        #[test]
        fn split_members_are_equal_on_all_ranks_of_a_color(
            all in proptest::collection::vec((proptest::option::of(0u32..4), any::<u32>()), 1..20),
        ) {
            let all = split_choices(&all);
            for rank in (0..all.len() as u32).map(Rank) {
                let group = subgroup_members(&all, rank);
                prop_assert_eq!(group.is_some(), all[rank.index()].color.is_some());
                for &other in group.iter().flatten() {
                    prop_assert_eq!(all[other.index()].color, all[rank.index()].color);
                    prop_assert_eq!(&subgroup_members(&all, other), &group);
                }
                prop_assert_eq!(group.iter().flatten().filter(|&&member| member == rank).count(), group.iter().len());
            }
        }

        #[test]
        fn split_choice_round_trips(color in proptest::option::of(any::<u32>()), key in any::<u32>()) {
            let choice = SplitChoice { color, key };
            prop_assert_eq!(SplitChoice::decode(choice.encode()), choice);
        }

        #[test]
        fn split_choice_decode_of_arbitrary_numbers_does_not_panic(color in any::<i64>(), key in any::<i64>()) {
            SplitChoice::decode([color, key]);
        }
    }
}
