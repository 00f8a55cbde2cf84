//! The name of a node in user messages: rank, host and address. Pure.

use std::fmt;

use rankrun_contract::rank::NodeRank;

use super::state::Node;
use super::text::escape_for_terminal;

/// Longest host name and address in messages, in characters.
const MAX_NAME: usize = 255;

/// A node's name in messages, such as `node 1 (vm, 10.0.0.2)`. Host names alone may be equal, for example in
/// containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeName {
    /// Node rank, if the node has one.
    pub rank: Option<NodeRank>,
    /// Host name; torchrun's agents do not publish it.
    pub host: Option<String>,
    /// The address that the node publishes.
    pub addr: Option<String>,
}

impl NodeName {
    /// The name of a node with a known host name only.
    #[must_use]
    pub fn of_host(host: impl Into<String>) -> Self {
        Self { host: Some(host.into()), ..Self::default() }
    }

    /// The name of a node with a known rank only.
    #[must_use]
    pub fn of_rank(rank: NodeRank) -> Self {
        Self { rank: Some(rank), ..Self::default() }
    }

    /// The name of a node in the shared state, with its host name if the node publishes it. Safe for a terminal.
    #[must_use]
    pub fn of_node(node: &Node, host: Option<&str>, rank: Option<NodeRank>) -> Self {
        let text = |text: &str| Some(escape_for_terminal(text, MAX_NAME)).filter(|text| !text.is_empty());
        Self { rank, host: host.and_then(text), addr: text(&node.addr) }
    }

    /// The same name without rank, for messages that print the rank elsewhere.
    #[must_use]
    pub fn without_rank(self) -> Self {
        Self { rank: None, ..self }
    }

    /// The text for a row with title `node`: `1, vm, 10.0.0.2`.
    #[must_use]
    pub fn as_row(&self) -> String {
        let rank = self.rank.map(|rank| rank.to_string());
        rank.into_iter().chain(self.host_and_addr().map(str::to_owned)).collect::<Vec<_>>().join(", ")
    }

    /// Host and address. They are equal for a torchrun agent, which publishes its host name as address.
    fn host_and_addr(&self) -> impl Iterator<Item = &str> {
        let addr = self.addr.as_deref().filter(|addr| self.host.as_deref() != Some(*addr));
        self.host.as_deref().into_iter().chain(addr)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<&str> = self.host_and_addr().collect();
        match (self.rank, places.as_slice()) {
            (Some(rank), []) => write!(f, "node {rank}"),
            (Some(rank), places) => write!(f, "node {rank} ({})", places.join(", ")),
            (None, []) => f.write_str("another node"),
            (None, [place]) => f.write_str(place),
            (None, [first, rest @ ..]) => write!(f, "{first} ({})", rest.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_named_by_rank_host_and_address_as_far_as_known() {
        let node = |addr: &str| Node { addr: addr.to_owned(), pid: 1, local_id: 0 };
        let name = |addr: &str, host: Option<&str>, rank: Option<u32>| {
            let name = NodeName::of_node(&node(addr), host, rank.map(NodeRank));
            (name.to_string(), name.as_row())
        };
        let golden = [
            (name("10.0.0.2", Some("vm"), Some(1)), "node 1 (vm, 10.0.0.2)", "1, vm, 10.0.0.2"),
            (name("10.0.0.2", Some("vm"), None), "vm (10.0.0.2)", "vm, 10.0.0.2"),
            (name("th2", None, Some(1)), "node 1 (th2)", "1, th2"),
            (name("th2", Some("th2"), Some(1)), "node 1 (th2)", "1, th2"),
            (name("", Some("vm"), Some(1)), "node 1 (vm)", "1, vm"),
            (name("th2", None, None), "th2", "th2"),
            (name("", None, Some(3)), "node 3", "3"),
            (name("", None, None), "another node", ""),
        ];
        for ((text, row), expected, expected_row) in golden {
            assert_eq!((text.as_str(), row.as_str()), (expected, expected_row));
        }
        assert_eq!(NodeName::of_host("vm").to_string(), "vm");
        assert_eq!(NodeName::of_rank(NodeRank(2)).to_string(), "node 2");
    }

    #[test]
    fn remote_node_names_are_bounded_and_escaped() {
        let node = Node { addr: format!("\x1b]0;{}", "x".repeat(500)), pid: 1, local_id: 0 };
        let name = NodeName::of_node(&node, Some("a\u{202e}b\n"), None).to_string();
        assert!(name.starts_with("a b  ( ]0;xxx") && name.chars().count() < 600, "{name}");
    }
}
