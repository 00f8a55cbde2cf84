//! The kernel's lists of CPUs: `0-3,8,10-11`. Pure.

/// The kernel's largest number of CPUs (`NR_CPUS` on x86); a larger number is not a CPU.
const MOST_CPUS: u32 = 8192;

/// The text is not a list of CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list of CPUs looks like `0-3,8,10-11`, with numbers below 8192")]
pub struct CpuListError;

/// The CPUs of a list, in ascending order, each once; an empty text is an empty list.
///
/// # Errors
/// The text is not a list, or has a number that no CPU can have.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, CpuListError> {
    let text = text.trim();
    let items = text.split(',').filter(|_| !text.is_empty());
    let mut runs = items.map(parse_range).collect::<Result<Vec<_>, _>>()?;
    runs.sort_unstable();
    // Each number once, so that a list that repeats itself costs no memory.
    let mut cpus = Vec::new();
    let mut next = 0;
    for (first, last) in runs {
        cpus.extend(first.max(next)..=last);
        next = next.max(last + 1);
    }
    Ok(cpus)
}

/// The CPUs of one item: `8` or `0-3`.
fn parse_range(item: &str) -> Result<(u32, u32), CpuListError> {
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (number(first)?, number(last)?);
    if first <= last { Ok((first, last)) } else { Err(CpuListError) }
}

fn number(text: &str) -> Result<u32, CpuListError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    number.filter(|number| *number < MOST_CPUS).ok_or(CpuListError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::affinity::format_ranges;

    #[test]
    fn kernel_cpu_lists_are_parsed() {
        let cases: [(&str, &[u32]); 6] = [
            ("", &[]),
            ("\n", &[]),
            ("0\n", &[0]),
            ("0-3,8,10-11\n", &[0, 1, 2, 3, 8, 10, 11]),
            ("3,1,1-2", &[1, 2, 3]),
            ("8191", &[8191]),
        ];
        for (text, cpus) in cases {
            assert_eq!(parse_cpu_list(text).as_deref(), Ok(cpus), "{text:?}");
        }
    }

    #[test]
    fn invalid_cpu_list_is_an_error() {
        for text in
            ["a", "1,", ",", "-", "1-", "-1", "3-2", "0-3:1/2", "1 2", "+1", "8192", "0-4294967295", "0x1"]
        {
            assert_eq!(parse_cpu_list(text), Err(CpuListError), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn cpu_list_round_trips(cpus in prop::collection::btree_set(0..MOST_CPUS, 0..200)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_cpu_list(&format_ranges(&cpus)), Ok(cpus));
        }

        #[test]
        fn parsed_cpu_list_is_sorted_and_in_range(text in "[0-9,\\- ]{0,40}|.{0,40}") {
            if let Ok(cpus) = parse_cpu_list(&text) {
                prop_assert!(cpus.is_sorted_by(|one, next| one < next) && cpus.iter().all(|cpu| *cpu < MOST_CPUS));
            }
        }
    }
}
