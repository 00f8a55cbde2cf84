//! Ranks of ours and of PyTorch that take turns on the same processors: for the benches that compare them.
//!
//! A rank makes the calls that it is told on standard input, and says how long each took. `place.rs` says where ranks are, and has the
//! store through which ours meet; `team.rs` starts ranks and asks them.

pub(crate) mod place;
#[path = "../../tests/runtime/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
pub(crate) mod team;

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use rankrun_contract::env::{Master, Role, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, RestartCount, RunId};
use rankrun_worker::{Rank, WorldSize};

use place::{Place, Store};
use team::{Line, Team};

/// Ranks of one kind, of which each has a processor that it shares with its like of the other kind.
#[derive(Clone, Copy)]
pub(crate) struct Peers<'a> {
    pub(crate) place: Place,
    pub(crate) world: u32,
    pub(crate) processors: &'a [usize],
}

impl Peers<'_> {
    /// Starts this program as each rank, with the environment of a worker.
    pub(crate) fn ours(self, store: &Store) -> Team {
        Team::start(self, |rank| {
            let vars = self.variables(store.port(), rank).to_vars();
            let vars = vars.into_iter().map(|(name, value)| (name.into(), value)).collect();
            (vec![env::current_exe().unwrap().into_os_string()], vars)
        })
    }

    /// Starts a script of the benches as each rank, one thread for each.
    pub(crate) fn torch(self, python: &OsStr, script: &str) -> Team {
        let port = free_port();
        let (address, interface) = self.place.first_rank();
        Team::start(self, |rank| -> Line {
            let vars = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", self.world.to_string()),
                ("MASTER_ADDR", address.to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("GLOO_SOCKET_IFNAME", interface.to_owned()),
                ("OMP_NUM_THREADS", "1".to_owned()),
            ];
            let vars = vars.map(|(name, value)| (name.into(), value.into())).to_vec();
            (vec![python.to_owned(), bench_file(script).into_os_string()], vars)
        })
    }

    fn variables(self, port: u16, rank: u32) -> WorkerEnv {
        let world_size = WorldSize::new(self.world).unwrap();
        WorkerEnv {
            rank: Rank(rank),
            local_rank: LocalRank(rank),
            world_size,
            local_world_size: LocalWorldSize(world_size.0),
            node_rank: NodeRank(0),
            node_count: NodeCount::ONE,
            role: Role { name: "default".to_owned(), rank: Rank(rank), world_size },
            master: Master { addr: self.place.store_address().to_owned(), port, uses_agent_store: true },
            restart_count: RestartCount(0),
            max_restarts: RestartCount(0),
            run_id: RunId("bench".to_owned()),
            error_file: None,
            signals_to_handle: String::new(),
            rankrun: None,
        }
    }
}

/// A file beside the benches.
pub(crate) fn bench_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join(name)
}

/// The PyTorch to compare with, if any.
pub(crate) fn python() -> Option<OsString> {
    env::var_os("RANKRUN_TEST_PYTHON")
}

/// The processors that this program may use.
pub(crate) fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect()
}

pub(crate) fn median(times: &mut [Duration]) -> Option<Duration> {
    times.sort();
    times.get(times.len() / 2).copied()
}

/// A column of a table: what was measured, if it was.
pub(crate) fn column<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// A port without a listener.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
