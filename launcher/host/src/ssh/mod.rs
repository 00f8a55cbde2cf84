//! Agents on other hosts, started by the system's ssh client.
//!
//! [`supervisor`] runs on the machine of the user: one ssh client for each host, and no worker. [`node`] runs on each
//! host: it reads what to launch, and the launcher goes on as if it had been typed there. The input of the connection is
//! the lifeline: at its end, also by a crash of either machine's processes, the job of the host stops.

mod client;
pub mod node;
mod output;
pub mod supervisor;
