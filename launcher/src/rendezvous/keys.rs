//! Every key that we read or write in a rendezvous store, as it is on the wire. Pure.
//!
//! torch's keys are contract 5.4 and 5.6. Ours are under `rankrun/`, where torch's agents never look.
//! A name of another node in a key is escaped and bounded, since it comes from the network.

use std::fmt::Write as _;

use rankrun_contract::rank::{NodeRank, RunId};

use super::state::Node;

/// What torch's clients put before every key.
const WIRE: &str = "/";

/// Longest escaped name of a node in a key; the rest of a longer one is a checksum.
const MAX_NAME: usize = 256;

/// The keys of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Whose value is the shared state.
    state: String,
    /// Before a round's number in torch's keys of that round.
    rounds: String,
    /// Before everything of ours.
    own: String,
}

impl Keys {
    /// Of a c10d rendezvous: what torchrun's agents of the same job use.
    #[must_use]
    pub fn dynamic(run_id: &RunId) -> Self {
        let state = format!("{WIRE}torch.rendezvous.{run_id}");
        Self { rounds: format!("{state}."), own: format!("{state}/rankrun/"), state }
    }

    /// Of a static job whose agents are all ours: everything but its first round (see [`RoundKeys::first_of_static`]).
    #[must_use]
    pub fn fixed(run_id: &RunId) -> Self {
        let own = format!("{WIRE}{run_id}/rankrun/");
        Self { state: format!("{own}state"), rounds: format!("{own}round/"), own }
    }

    /// The shared state.
    #[must_use]
    pub fn state(&self) -> &str {
        &self.state
    }

    /// torch's keys of a round.
    #[must_use]
    pub fn round(&self, round: u64) -> RoundKeys {
        RoundKeys { prefix: format!("{}{round}/", self.rounds) }
    }

    /// Which round's [`RoundKeys::master_addr`] a key is, if it is one.
    #[must_use]
    pub fn round_of_master_addr(&self, key: &[u8]) -> Option<u64> {
        let key = std::str::from_utf8(key).ok()?;
        let round = key.strip_prefix(self.rounds.as_str())?.strip_suffix("/MASTER_ADDR")?;
        let is_number = !round.is_empty() && round.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| round.parse().ok())?
    }

    /// Counts the rings of the bell.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}version", self.own)
    }

    /// The bell: appears when [`Self::version`] has become `version`.
    #[must_use]
    pub fn bell(&self, version: i64) -> String {
        format!("{}{version}", self.own)
    }

    /// Counts those who have lost a write and want to write one after the other.
    #[must_use]
    pub fn turns(&self) -> String {
        format!("{}turns", self.own)
    }

    /// Appears when the one with this number has had its turn.
    #[must_use]
    pub fn turn(&self, number: i64) -> String {
        format!("{}turn/{number}", self.own)
    }

    /// Which store this is: random, by whoever came first.
    #[must_use]
    pub fn store(&self) -> String {
        format!("{}store", self.own)
    }

    /// What an agent of ours says of itself.
    #[must_use]
    pub fn agent(&self, node: &Node) -> String {
        format!("{}agent/{}", self.own, name(node))
    }

    /// An agent's signs of life: a counter.
    #[must_use]
    pub fn beat(&self, node: &Node) -> String {
        format!("{}beat/{}", self.own, name(node))
    }

    /// Why a node has left.
    #[must_use]
    pub fn left(&self, node: &Node) -> String {
        format!("{}left/{}", self.own, name(node))
    }

    /// The ranks of the last complete round.
    #[must_use]
    pub fn ranks(&self) -> String {
        format!("{}ranks", self.own)
    }

    /// The failure that ended a round.
    #[must_use]
    pub fn failure(&self, round: u64) -> String {
        format!("{}{round}/failure", self.own)
    }

    /// Appears when all workers of a node have succeeded in a round.
    #[must_use]
    pub fn done(&self, round: u64, node: &Node) -> String {
        format!("{}{round}/done/{}", self.own, name(node))
    }

    /// Appears where an agent of ours hosts the store, and tells at once whose connections have closed.
    #[must_use]
    pub fn watched(&self) -> String {
        format!("{}watched", self.own)
    }

    /// The closing note.
    #[must_use]
    pub fn end(&self) -> String {
        format!("{}end", self.own)
    }

    /// Static: the agent that holds a node rank.
    #[must_use]
    pub fn claim(&self, node_rank: NodeRank) -> String {
        format!("{}agent/{node_rank}", self.own)
    }

    /// Static: the state with which agents that are all ours go on.
    #[must_use]
    pub fn alone(&self) -> String {
        format!("{}alone", self.own)
    }
}

/// torch's keys of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundKeys {
    prefix: String,
}

impl RoundKeys {
    /// Of the first round of a static job, which has no number.
    #[must_use]
    pub fn first_of_static(run_id: &RunId) -> Self {
        Self { prefix: format!("{WIRE}{run_id}/") }
    }

    /// Where the workers meet: the host.
    #[must_use]
    pub fn master_addr(&self) -> String {
        format!("{}MASTER_ADDR", self.prefix)
    }

    /// Where the workers meet: the port.
    #[must_use]
    pub fn master_port(&self) -> String {
        format!("{}MASTER_PORT", self.prefix)
    }

    /// What an agent says of its workers.
    #[must_use]
    pub fn role_info(&self, node_rank: NodeRank) -> String {
        format!("{}torchelastic/role_info/{node_rank}", self.prefix)
    }

    /// The ranks of an agent's workers.
    #[must_use]
    pub fn assigned_ranks(&self, node_rank: NodeRank) -> String {
        format!("{}torchelastic/assigned_ranks/{node_rank}", self.prefix)
    }

    /// Counts the agents whose workers have all succeeded.
    #[must_use]
    pub fn num_members(&self) -> String {
        format!("{}torchelastic/agent/terminal_state/num_members", self.prefix)
    }

    /// Appears when all of them have.
    #[must_use]
    pub fn last_member(&self) -> String {
        format!("{}torchelastic/agent/terminal_state/last_member", self.prefix)
    }
}

/// `<addr>_<pid>_<counter>` with every byte of the address that is not plain as `%XX`. Two nodes never have the same
/// name, but for those of above [`MAX_NAME`], where a checksum tells them apart.
fn name(node: &Node) -> String {
    let mut addr = String::new();
    for byte in node.addr.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b':' | b'-' | b'_' => addr.push(byte.into()),
            byte => write!(addr, "%{byte:02X}").expect("a string takes any text"),
        }
    }
    if addr.len() > MAX_NAME {
        addr.truncate(MAX_NAME);
        write!(addr, "%{:032x}", checksum([node.addr.as_bytes()])).expect("a string takes any text");
    }
    format!("{addr}_{}_{}", node.pid, node.local_id)
}

/// FNV-1a of 128 bits over the pieces, with an end to each: tells texts apart that nobody has made to look alike.
pub(crate) fn checksum<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |sum: u128, byte: u64| (sum ^ u128::from(byte)).wrapping_mul(PRIME);
    pieces.into_iter().fold(OFFSET, |sum, piece| {
        let sum = piece.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)));
        // No byte: the pieces `ab`, `c` are not `a`, `bc`.
        step(sum, 256)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn node(addr: &str) -> Node {
        Node { addr: addr.to_owned(), pid: 4711, local_id: 0 }
    }

    fn job() -> RunId {
        RunId("job".to_owned())
    }

    #[test]
    fn torchs_keys_are_those_of_the_contract() {
        let keys = Keys::dynamic(&job());
        assert_eq!(keys.state(), "/torch.rendezvous.job");
        let round = keys.round(7);
        assert_eq!(round.master_addr(), "/torch.rendezvous.job.7/MASTER_ADDR");
        assert_eq!(round.master_port(), "/torch.rendezvous.job.7/MASTER_PORT");
        assert_eq!(round.role_info(NodeRank(3)), "/torch.rendezvous.job.7/torchelastic/role_info/3");
        assert_eq!(
            round.assigned_ranks(NodeRank(0)),
            "/torch.rendezvous.job.7/torchelastic/assigned_ranks/0"
        );
        let end = "/torch.rendezvous.job.7/torchelastic/agent/terminal_state";
        assert_eq!(round.num_members(), format!("{end}/num_members"));
        assert_eq!(round.last_member(), format!("{end}/last_member"));
        assert_eq!(
            RoundKeys::first_of_static(&job()).role_info(NodeRank(1)),
            "/job/torchelastic/role_info/1"
        );
    }

    #[test]
    fn the_round_of_an_address_is_read_from_its_key() {
        let keys = Keys::dynamic(&job());
        let round_of = |key: &str| keys.round_of_master_addr(key.as_bytes());
        assert_eq!(round_of(&keys.round(12).master_addr()), Some(12));
        for key in [
            keys.round(12).master_port(),
            keys.state().to_owned(),
            "/torch.rendezvous.job.+1/MASTER_ADDR".to_owned(),
            "/torch.rendezvous.job./MASTER_ADDR".to_owned(),
            "/torch.rendezvous.job.99999999999999999999/MASTER_ADDR".to_owned(),
            "/torch.rendezvous.other.1/MASTER_ADDR".to_owned(),
        ] {
            assert_eq!(round_of(&key), None, "{key}");
        }
    }

    #[test]
    fn no_two_keys_of_ours_are_the_same() {
        for keys in [Keys::dynamic(&job()), Keys::fixed(&job())] {
            let node = node("th1");
            let all = [
                keys.state().to_owned(),
                keys.round(5).master_addr(),
                keys.version(),
                keys.bell(5),
                keys.store(),
                keys.agent(&node),
                keys.beat(&node),
                keys.left(&node),
                keys.ranks(),
                keys.failure(5),
                keys.done(5, &node),
                keys.end(),
                keys.claim(NodeRank(5)),
                keys.alone(),
            ];
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
            assert!(all[2..].iter().all(|key| key.contains("/rankrun/")), "{all:?}");
        }
    }

    #[test]
    fn names_of_nodes_are_escaped() {
        assert_eq!(name(&node("fe80::1")), "fe80::1_4711_0");
        assert_eq!(name(&node("a/b%c\né")), "a%2Fb%25c%0A%C3%A9_4711_0");
    }

    #[test]
    fn long_names_are_bounded_and_differ() {
        let long = "/".repeat(1 << 20);
        let (one, other) = (name(&node(&long)), name(&node(&format!("{long}x"))));
        assert!(one.len() < 512 && one != other, "{} {one} {other}", one.len());
    }

    #[test]
    fn the_checksum_is_fnv() {
        // The published value of FNV-1a 128 for no input; each piece has one more step.
        assert_eq!(checksum([]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        let sums =
            [checksum([]), checksum([&b""[..]]), checksum([&b"ab"[..], b"c"]), checksum([&b"a"[..], b"bc"])];
        assert_eq!(sums.iter().collect::<BTreeSet<_>>().len(), sums.len());
    }
}
