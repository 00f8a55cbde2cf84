//! Says why the kernel does not permit a process to look into another one. Pure.

use std::fmt;

/// What is known of the refusal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PtraceFacts {
    /// `/proc/sys/kernel/yama/ptrace_scope`; `None` for a kernel without Yama.
    pub yama_mode: Option<u8>,
    /// The effective capabilities hold `CAP_SYS_PTRACE`.
    pub has_capability: bool,
    /// A seccomp filter is in force, which may refuse the system calls.
    pub is_filtered: bool,
    /// The process that traces the worker: a process has one tracer at a time.
    pub tracer: Option<i32>,
}

/// Why tracing is refused, the surest cause first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PtraceDenial {
    /// A seccomp filter, as a container has it.
    Seccomp,
    /// Another process traces the worker.
    Traced {
        /// Its process id.
        tracer: i32,
    },
    /// Yama admits ancestors and the tracer that a worker names.
    YamaAncestors {
        /// The launcher has had its workers name it, and one of them has not, or has named another.
        is_allowed: bool,
    },
    /// Yama admits only processes with `CAP_SYS_PTRACE`.
    YamaAdministrators,
    /// Yama admits no process.
    YamaForbidden,
    /// The kernel's own rule: another user's process, or one that is not dumpable.
    Protected,
}

/// Whether a tool says that the kernel has refused it.
#[must_use]
pub fn is_denial_text(text: &str) -> bool {
    ["Operation not permitted", "Permission denied", "os error 1)", "os error 13)"]
        .iter()
        .any(|words| text.contains(words))
}

impl PtraceFacts {
    /// The cause of a refusal. `is_allowed`: the launcher was started with `--allow-ptrace`.
    #[must_use]
    pub const fn denial(&self, is_allowed: bool) -> PtraceDenial {
        match *self {
            Self { tracer: Some(tracer), .. } => PtraceDenial::Traced { tracer },
            Self { yama_mode: Some(3..), .. } => PtraceDenial::YamaForbidden,
            Self { yama_mode: Some(2), has_capability: false, .. } => PtraceDenial::YamaAdministrators,
            Self { yama_mode: Some(1), has_capability: false, is_filtered, .. }
                if !(is_allowed && is_filtered) =>
            {
                PtraceDenial::YamaAncestors { is_allowed }
            }
            Self { is_filtered: true, .. } => PtraceDenial::Seccomp,
            _ => PtraceDenial::Protected,
        }
    }
}

impl fmt::Display for PtraceDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ptrace is not permitted (")?;
        match self {
            Self::Seccomp => f.write_str("a seccomp filter, as a container has it, probably refuses it"),
            Self::Traced { tracer } => write!(f, "process {tracer} traces the worker"),
            Self::YamaAncestors { is_allowed: false } => {
                f.write_str("Yama mode 1; `--allow-ptrace` permits it to the launcher")
            }
            Self::YamaAncestors { is_allowed: true } => {
                f.write_str("Yama mode 1; the process has not named the launcher as its tracer")
            }
            Self::YamaAdministrators => f.write_str("Yama mode 2 wants CAP_SYS_PTRACE"),
            Self::YamaForbidden => f.write_str("Yama mode 3"),
            Self::Protected => {
                f.write_str("another user's process, or not dumpable; CAP_SYS_PTRACE is missing")
            }
        }?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(change: impl FnOnce(&mut PtraceFacts)) -> String {
        let mut facts = PtraceFacts::default();
        change(&mut facts);
        facts.denial(false).to_string()
    }

    #[test]
    fn each_refusal_has_its_cause() {
        let yama = |mode| denial(|facts| facts.yama_mode = Some(mode));
        assert_eq!(
            yama(1),
            "ptrace is not permitted (Yama mode 1; `--allow-ptrace` permits it to the launcher)"
        );
        assert_eq!(yama(2), "ptrace is not permitted (Yama mode 2 wants CAP_SYS_PTRACE)");
        assert_eq!(yama(3), "ptrace is not permitted (Yama mode 3)");
        let protected = denial(|_| {});
        assert!(protected.contains("not dumpable"), "{protected}");
        assert_eq!(yama(0), protected);
        let traced = denial(|facts| facts.tracer = Some(7));
        assert!(traced.contains("process 7 traces the worker"), "{traced}");
        assert!(denial(|facts| facts.is_filtered = true).contains("a seccomp filter"));
        // What Yama forbids is sure; a filter may let the calls pass.
        let both = PtraceFacts { yama_mode: Some(1), is_filtered: true, ..PtraceFacts::default() };
        assert_eq!(both.denial(false), PtraceDenial::YamaAncestors { is_allowed: false });
        assert_eq!(both.denial(true), PtraceDenial::Seccomp);
    }

    #[test]
    fn refusal_of_the_kernel_differs_from_other_errors() {
        assert!(is_denial_text("dwfl_linux_proc_attach pid 70: Operation not permitted"));
        assert!(is_denial_text("Failed to copy: Permission denied (os error 13)"));
        assert!(!is_denial_text("No such process (os error 3)"));
    }

    #[test]
    fn option_that_was_given_is_not_advised() {
        let facts = PtraceFacts { yama_mode: Some(1), ..PtraceFacts::default() };
        let text = facts.denial(true).to_string();
        assert!(text.contains("Yama mode 1") && !text.contains("--allow-ptrace"), "{text}");
    }

    #[test]
    fn capability_rules_out_yama_but_for_mode_3() {
        let of = |mode, has_capability, is_filtered| {
            PtraceFacts { yama_mode: Some(mode), has_capability, is_filtered, ..PtraceFacts::default() }
                .denial(false)
        };
        assert_eq!(of(1, true, false), PtraceDenial::Protected);
        assert_eq!(of(2, true, false), PtraceDenial::Protected);
        assert_eq!(of(3, true, false), PtraceDenial::YamaForbidden);
        assert_eq!(of(3, true, true), PtraceDenial::YamaForbidden);
        assert_eq!(of(1, true, true), PtraceDenial::Seccomp);
    }
}
