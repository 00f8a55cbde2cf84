//! The commands that ask a running job through its control socket.
//!
//! | file | what it does | pure |
//! |---|---|---|
//! | `lookup` | which job a person means | yes |
//! | `command` | `rankrun ls`, `status`, `stop`, `restart` | no |
//! | `socket` | the end of the client | no |
//! | `pages` | what they print | yes |

pub mod command;
pub mod lookup;
mod pages;
mod socket;
