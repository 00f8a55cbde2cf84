//! The commands that ask a running job through its control socket.
//!
//! | file | what it does | pure |
//! |---|---|---|
//! | `lookup` | which job a person means | yes |
//! | `command` | `rankrun ls`, `status`, `stop`, `restart` | no |
//! | `jobs` | the running jobs, with their status | no |
//! | `job_request` | a request to one job, and the wait for its end | no |
//! | `interrupt` | the line of a command that a signal ends | no |
//! | `socket` | the end of the client | no |
//! | `pages` | what they print | yes |

pub mod command;
mod interrupt;
mod job_request;
mod jobs;
pub(crate) mod lookup;
mod pages;
mod socket;
#[cfg(test)]
mod test_place;
