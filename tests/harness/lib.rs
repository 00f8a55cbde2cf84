//! What the end-to-end tests share: a launcher started as a user would start it, its output as events, and an
//! account of every process of the job.
//!
//! - [`Launch`] describes one start; [`Job`] is it running; [`Outcome`] is what was left of it.
//! - Every wait ends: with the event, or with a failure that shows the whole output when the launch's deadline is
//!   reached. Nothing here sleeps.
//! - Every process of a job inherits a mark in its environment, so that [`Job::wait`] can prove that none is left.
//! - `RANKRUN_E2E_ORACLE=1` runs PyTorch's torchrun wherever a test says [`Name::Torchrun`]: the proof that the
//!   tests describe torchrun.

mod cgroup;
mod fleet;
mod fork_server;
mod gate;
mod job;
mod launch;
mod machine;
mod machine_tree;
mod outcome;
pub mod payload;
mod place;
mod processes;
mod random;
mod recording;
mod schema;
mod screen;
mod session;
mod settings;
mod slurm;
mod ssh_fleet;
mod store;
mod transcript;

pub use cgroup::{MemoryCgroup, memory_kills_alone};
pub use fake_machine::{Card, Fault, Lost, Path as Way, Vendor};
pub use fleet::{Fleet, Refusal};
pub use gate::Gate;
pub use job::Job;
pub use launch::{Launch, Name};
pub use machine::{Machine, Opening};
pub use machine_tree::{MachineTree, Slot};
pub use outcome::Outcome;
pub use place::{
    Scratch, checkout, example, example_source, fixture, frameworks, free_port, library, mpi_folders, python,
    python_modules, wheel,
};
pub use processes::{Process, has_thread_in_dstate, is_sleeping, is_stopped, is_zombie_or_gone};
pub use random::Random;
pub use recording::{WITH_TORCH, check_recordings, recordings};
pub use schema::schema_problems;
pub use screen::Size;
pub use session::{FIRST_IN_PATH, Session, check_sessions, read_sessions, session_launch};
pub use settings::{can_use_namespaces, is_rankrun, is_soak, is_torchrun, print_notice};
pub use slurm::{ProcessTracking, SlurmCluster};
pub use ssh_fleet::SshFleet;
pub use store::Store;
pub use transcript::field;
