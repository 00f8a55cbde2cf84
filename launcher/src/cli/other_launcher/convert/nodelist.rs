//! Lists of nodes as Slurm writes them: `n[01-04,7],login`. Pure.

/// More than a line names.
const MOST_NODES: usize = 1 << 16;

/// The names of the nodes; nothing where the list is a file or a variable, or has two brackets in a name.
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
    for item in list.split(ends_item).filter(|item| !item.is_empty()) {
        let Some((prefix, behind)) = item.split_once('[') else {
            names.push(item.to_owned());
            continue;
        };
        let (ranges, suffix) = behind.split_once(']').filter(|(_, suffix)| !suffix.contains('['))?;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let numbers: (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let (from, to) = numbers;
            if from > to || to - from >= MOST_NODES - names.len().min(MOST_NODES) {
                return None;
            }
            let width = first.len();
            names.extend((from..=to).map(|number| format!("{prefix}{number:0width$}{suffix}")));
        }
    }
    Some(names)
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
        ] {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
    }

    #[test]
    fn other_lists_are_not_read() {
        for list in ["./hosts", "$LIST", "n[1-2]m[1-2]", "n[1-", "n[a-b]", "n[4-1]", "n[]", "n[1-99999999]"] {
            assert_eq!(expand(list), None, "{list}");
        }
    }
}
