//! Which devices a process sees: `ROCR_VISIBLE_DEVICES`, then `HIP_VISIBLE_DEVICES` over what is left (ROCR-Runtime's
//! `amd_filter_device.cpp`, `ROCclr`'s `rocdevice.cpp`). Pure.

use fake_machine::{Machine, Vendor};

/// The two filters' variables.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Variables<'a> {
    /// `ROCR_VISIBLE_DEVICES`
    pub(crate) rocr: Option<&'a str>,
    /// `HIP_VISIBLE_DEVICES`
    pub(crate) hip: Option<&'a str>,
    /// `CUDA_VISIBLE_DEVICES`, which HIP reads where its own says nothing.
    pub(crate) cuda: Option<&'a str>,
}

/// The positions of the cards, in the order of HIP's numbers.
pub(crate) fn visible(machine: &Machine, variables: Variables<'_>) -> Vec<usize> {
    let nodes: Vec<usize> = machine.of(Vendor::Amd).map(|(position, _)| position).collect();
    let visible_nodes = match variables.rocr {
        None => nodes,
        Some(list) => rocr(machine, &nodes, list),
    };
    let list = [variables.hip, variables.cuda].into_iter().flatten().find(|list| !list.is_empty());
    match list {
        None => visible_nodes,
        Some(list) => hip(machine, &visible_nodes, list),
    }
}

fn rocr(machine: &Machine, nodes: &[usize], list: &str) -> Vec<usize> {
    let mut chosen = Vec::new();
    for entry in list.split(',').take(nodes.len()) {
        let entry = entry.trim().to_uppercase();
        let found = if entry.starts_with('G') {
            let fits = |node: &&usize| machine.cards[**node].uuid.to_uppercase().starts_with(&entry);
            let fitting: Vec<_> = nodes.iter().filter(fits).collect();
            (fitting.len() == 1 && (5..=20).contains(&entry.len())).then(|| *fitting[0])
        } else {
            strtol(&entry).and_then(|index| nodes.get(index)).copied()
        };
        match found {
            Some(node) if !chosen.contains(&node) => chosen.push(node),
            _ => break,
        }
    }
    chosen
}

/// As C's with the base 0, and nothing may be left over.
fn strtol(text: &str) -> Option<usize> {
    match text.strip_prefix("0X") {
        Some(hex) => usize::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => usize::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

fn hip(machine: &Machine, nodes: &[usize], list: &str) -> Vec<usize> {
    let mut chosen = Vec::new();
    for entry in list.split(',') {
        let by_index = entry.parse().ok().filter(|index: &usize| index.to_string() == entry);
        let by_uuid = || nodes.iter().position(|node| machine.cards[*node].uuid == entry);
        let Some(node) = by_index.or_else(by_uuid).and_then(|index| nodes.get(index)) else { break };
        if !chosen.contains(node) {
            chosen.push(*node);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn sees(rocr: Option<&str>, hip: Option<&str>, cuda: Option<&str>, expected: &[usize]) {
        let text: String = (0..4)
            .map(|at| format!("card\n vendor amd\n uuid GPU-{at}000000000000000\n pci 0000:{at:02x}:00.0\n"))
            .collect();
        let machine = text.parse().expect("the format is right");
        assert_eq!(visible(&machine, Variables { rocr, hip, cuda }), expected);
    }

    #[test]
    fn visibility_variables_follow_amd_rules() {
        sees(None, None, None, &[0, 1, 2, 3]);
        sees(Some(""), None, None, &[]);
        sees(Some("0,0,1"), None, None, &[0]);
        sees(Some("0x2"), None, None, &[2]);
        sees(Some("gpu-3,1"), None, None, &[3, 1]);
        sees(None, Some("0,0,1"), None, &[0, 1]);
        sees(None, Some("0, 1"), None, &[0]);
        sees(None, Some("-1"), None, &[]);
        sees(None, Some(""), Some("1"), &[1]);
        sees(Some("2,3"), Some("1"), None, &[3]);
    }
}
