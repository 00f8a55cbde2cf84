//! Lists of nodes as Slurm writes them: `n[01-04,7],login`, `r[1-2]n[1-8]`. Pure.

/// No list has more names.
const MOST_NODES: usize = 1 << 16;

/// The names of the nodes in the order of `scontrol show hostnames`; nothing where the list is a file or a variable, or
/// cannot be read.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    if list.contains(['/', '$']) {
        return None;
    }
    let mut is_open = false;
    let ends_item = |letter| {
        is_open = (is_open || letter == '[') && letter != ']';
        letter == ',' && !is_open
    };
    let mut names = Vec::new();
    for item in list.split(ends_item).map(str::trim).filter(|item| !item.is_empty()) {
        names.extend(expand_item(item)?);
        if names.len() > MOST_NODES {
            return None;
        }
    }
    Some(names)
}

/// `n[1-2]m[1-2]` is a product, whose last part changes first.
fn expand_item(item: &str) -> Option<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, behind)) = rest.split_once('[') {
        let (ranges, suffix) = behind.split_once(']').filter(|_| !before.contains(']'))?;
        let mut numbers = Vec::new();
        for range in ranges.split(',') {
            expand_range(range, MOST_NODES / names.len(), &mut numbers)?;
        }
        let of_name = |name: &String| {
            numbers.iter().map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(of_name).collect();
        rest = suffix;
    }
    (!rest.contains(']')).then(|| names.into_iter().map(|name| name + rest).collect())
}

/// `08-10` → `08`, `09`, `10`, up to `most` numbers in all.
fn expand_range(range: &str, most: usize, numbers: &mut Vec<String>) -> Option<()> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let width = first.len();
    let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    let has_room = to.checked_sub(from)? < most.saturating_sub(numbers.len());
    if !is_number(first) || !is_number(last) || !has_room || width > 20 {
        return None;
    }
    numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_expanded_with_their_zeros() {
        for (list, names) in [
            ("a,b", &["a", "b"][..]),
            ("n[1-3]", &["n1", "n2", "n3"]),
            ("n[08-10,15]-ib,login", &["n08-ib", "n09-ib", "n10-ib", "n15-ib", "login"]),
            ("n7,m[1,3],", &["n7", "m1", "m3"]),
            ("r[1-2]n[1-2],x", &["r1n1", "r1n2", "r2n1", "r2n2", "x"]),
            ("x[1-2]-ib[03-4]", &["x1-ib03", "x1-ib04", "x2-ib03", "x2-ib04"]),
        ] {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
    }

    #[test]
    fn other_lists_are_not_read() {
        for list in [
            "./hosts",
            "$LIST",
            "n[1-",
            "n]1",
            "n[a-b]",
            "n[4-1]",
            "n[]",
            "n[1-99999999]",
            "n[+1-2]",
            "n[1-2]]",
            "n[1-400]m[1-400]",
        ] {
            assert_eq!(expand(list), None, "{list}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_list_does_not_panic(list in "[0-9a-c\\[\\],-]{0,24}", any in "\\PC{0,24}") {
            let _ = (expand(&list), expand(&any));
        }
    }
}
