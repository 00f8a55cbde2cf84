//! The second run of `--compare`: every rank executes this program again, since
//! NCCL reads its variables only once.
//!
//! The launcher sees the same process. An environment variable carries the first result.

#![expect(clippy::disallowed_methods, reason = "starts this program again, with another environment")]

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rankrun_worker::process_group::Backend;

use crate::BenchError;
use crate::table::Row;

/// Variable with the rows of the first run.
const FIRST_RUN: &str = "ALLREDUCE_BENCH_FIRST_RUN";
/// With it NCCL uses neither NVLink nor PCIe peer-to-peer.
const DISABLE: &str = "NCCL_P2P_DISABLE";

/// The result of the first run.
#[derive(Debug, PartialEq)]
pub(crate) struct FirstRun {
    pub(crate) backend: Backend,
    pub(crate) rows: Vec<Row>,
}

/// Whether a second run can differ.
pub(crate) fn check(backend: Backend) -> Result<(), BenchError> {
    let is_disabled = || env::var_os(DISABLE).is_some_and(|value| value != "0");
    match backend {
        Backend::Nccl if is_disabled() => Err(BenchError::AlreadyDisabled),
        Backend::Nccl | Backend::Shm | Backend::Mixed => Ok(()),
        backend @ (Backend::Memory | Backend::Tcp) => Err(BenchError::NothingToCompare { backend }),
    }
}

/// The first result, in the second run.
pub(crate) fn load_first_run() -> Option<FirstRun> {
    parse(&env::var(FIRST_RUN).ok()?)
}

/// Executes the second run; returns only an error.
pub(crate) fn run_again(first: &FirstRun) -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1)).env(FIRST_RUN, render(first));
    if first.backend == Backend::Nccl {
        command.env(DISABLE, "1");
    }
    command.exec()
}

fn render(first: &FirstRun) -> String {
    let rows = first.rows.iter().map(|row| format!(" {}:{}", row.size, row.micros));
    format!("{}{}", first.backend, rows.collect::<String>())
}

fn parse(text: &str) -> Option<FirstRun> {
    let mut fields = text.split(' ');
    let name = fields.next()?;
    let known = [Backend::Shm, Backend::Mixed, Backend::Nccl];
    let backend = known.into_iter().find(|backend| backend.to_string() == name)?;
    let row = |field: &str| {
        let (size, micros) = field.split_once(':')?;
        let (size, micros) = (size.parse().ok()?, micros.parse().ok()?);
        Some(Row { size, count: 0, micros, factor: 0.0, wrong: 0 })
    };
    Some(FirstRun { backend, rows: fields.map(row).collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_first_run_parses_unchanged() {
        let row = |size, micros| Row { size, count: 0, micros, factor: 0.0, wrong: 0 };
        for rows in [vec![], vec![row(8, 0.5), row(64 << 20, 123.456)]] {
            let first = FirstRun { backend: Backend::Mixed, rows };
            assert_eq!(parse(&render(&first)), Some(first));
        }
        for text in ["", "memory", "shm 8", "shm 8:x", "shm 8:1 "] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn backend_without_faster_path_is_refused() {
        assert!(check(Backend::Shm).is_ok());
        let error = check(Backend::Tcp).unwrap_err().to_string();
        assert!(error.contains("`tcp` has no faster path"), "{error}");
    }
}
