//! The file names in a folder of checkpoints. Pure.

use super::header::{parse_checksum, render_checksum};

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";
const UNFINISHED: &str = ".partial-";
/// Minimum digits of a step, so that files sort in order.
const DIGITS: usize = 10;

/// The main file of a checkpoint: its replicated tensors, and the list of parts.
pub(super) fn main_file_name(step: u64) -> String {
    format!("{PREFIX}{step:0DIGITS$}{SUFFIX}")
}

/// A part with the sharded tensors of one rank.
pub(super) fn part_file_name(step: u64, id: u64, part: usize, parts: usize) -> String {
    format!("{PREFIX}{step:0DIGITS$}.{}.part-{part}-of-{parts}{SUFFIX}", render_checksum(id))
}

/// The temporary file for a file of that name.
pub(super) fn unfinished_file_name(name: &str, mark: u64) -> String {
    format!("{name}{UNFINISHED}{}", render_checksum(mark))
}

/// The step of a main file.
pub(super) fn parse_step(name: &str) -> Option<u64> {
    let step = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    // Ranks exchange steps as `i64`.
    (main_file_name(step) == name && i64::try_from(step).is_ok()).then_some(step)
}

/// Step and id of a part.
fn parse_part(name: &str) -> Option<(u64, u64)> {
    let mut fields = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split('.');
    let (step, id, number) = (fields.next()?, fields.next()?, fields.next()?);
    let (part, parts) = number.strip_prefix("part-")?.split_once("-of-")?;
    let (step, id) = (step.parse().ok()?, parse_checksum(id)?);
    let expected = self::part_file_name(step, id, part.parse().ok()?, parts.parse().ok()?);
    (expected == name).then_some((step, id))
}

fn is_unfinished(name: &str) -> bool {
    let Some((finished, _)) = name.split_once(UNFINISHED) else { return false };
    parse_step(finished).is_some() || parse_part(finished).is_some()
}

/// Files of an interrupted save: unfinished files, and parts of a step without a main file.
pub(super) fn abandoned_files(names: &[String]) -> impl Iterator<Item = &str> {
    let whole: Vec<u64> = names.iter().filter_map(|name| parse_step(name)).collect();
    let is_abandoned = move |name: &&str| {
        is_unfinished(name) || parse_part(name).is_some_and(|(step, _)| !whole.contains(&step))
    };
    names.iter().map(String::as_str).filter(is_abandoned)
}

/// The files to remove after a save of `step`: checkpoints before the last `keep`, parts without a main file,
/// unfinished files. Later steps stay, since only a load can verify them.
pub(super) fn outdated_files(
    names: &[String],
    saved: (u64, Option<u64>),
    keep: usize,
) -> impl Iterator<Item = &str> {
    let (step, id) = saved;
    let mut earlier: Vec<u64> =
        names.iter().filter_map(|name| parse_step(name)).filter(|earlier| *earlier < step).collect();
    earlier.sort_unstable();
    let kept = earlier.split_off(earlier.len().saturating_sub(keep.saturating_sub(1)));
    let later: Vec<u64> =
        names.iter().filter_map(|name| parse_step(name)).filter(|later| *later > step).collect();
    let is_left_over = move |name: &str| {
        if let Some(of) = parse_step(name) {
            of < step && !kept.contains(&of)
        } else if let Some((of, save)) = parse_part(name) {
            if of == step { Some(save) != id } else { !kept.contains(&of) && !later.contains(&of) }
        } else {
            is_unfinished(name)
        }
    };
    names.iter().map(String::as_str).filter(move |name| is_left_over(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn foreign_file_names_are_not_matched() {
        assert_eq!(main_file_name(40), "step-0000000040.safetensors");
        assert_eq!(
            part_file_name(40, 0xAB, 1, 4),
            "step-0000000040.00000000000000ab.part-1-of-4.safetensors"
        );
        for step in [0, 40, 12_345_678_901] {
            assert_eq!(parse_step(&main_file_name(step)), Some(step));
            assert_eq!(parse_part(&part_file_name(step, 3, 0, 1)), Some((step, 3)));
            assert!(is_unfinished(&unfinished_file_name(&main_file_name(step), 9)));
        }
        for name in [
            "step-40.safetensors",
            "step-+000000040.safetensors",
            "step-0000000040.safetensors.bak",
            "step-18446744073709551615.safetensors",
            "model.safetensors",
            "model.safetensors.partial-1",
        ] {
            assert!(
                parse_step(name).is_none() && parse_part(name).is_none() && !is_unfinished(name),
                "{name}"
            );
        }
    }

    #[test]
    fn newest_checkpoints_keep_their_parts() {
        let mut names: Vec<String> = [10, 20, 30, 40, 90].map(main_file_name).to_vec();
        names.extend([10, 20, 30, 40, 90].map(|step| part_file_name(step, step, 0, 2)));
        names.extend([
            part_file_name(40, 41, 0, 2),
            part_file_name(25, 1, 0, 1),
            unfinished_file_name(&main_file_name(20), 5),
            "notes.txt".to_owned(),
        ]);
        let gone: Vec<&str> = outdated_files(&names, (40, Some(41)), 3).collect();
        let expected = [
            main_file_name(10),
            part_file_name(10, 10, 0, 2),
            part_file_name(40, 40, 0, 2),
            part_file_name(25, 1, 0, 1),
            unfinished_file_name(&main_file_name(20), 5),
        ];
        assert_eq!(gone, expected);
    }

    #[test]
    fn interrupted_save_leaves_unreferenced_parts() {
        let kept = [
            main_file_name(20),
            part_file_name(20, 1, 0, 1),
            part_file_name(20, 2, 0, 1),
            "notes.txt".to_owned(),
        ];
        let abandoned = [
            unfinished_file_name(&main_file_name(20), 1),
            unfinished_file_name(&part_file_name(30, 1, 0, 2), 1),
            part_file_name(30, 1, 1, 2),
        ];
        let names = [&kept[..], &abandoned].concat();
        assert_eq!(abandoned_files(&names).collect::<Vec<_>>(), abandoned);
    }

    proptest! {
        #[test]
        fn saved_checkpoints_are_not_abandoned(steps in proptest::collection::vec(0u64..50, 0..9), step in 0u64..50, keep in 0usize..5) {
            let names: Vec<String> = steps.into_iter().chain([step]).map(main_file_name).collect();
            prop_assert!(outdated_files(&names, (step, None), keep).all(|name| name != main_file_name(step)));
        }
    }
}
