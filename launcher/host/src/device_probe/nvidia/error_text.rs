//! Texts of NVML's errors. Pure.

use nvml_wrapper::error::NvmlError;

use rankrun_core::device::ProbeProblemKind;

/// The error in `nvidia-smi`'s words where it has some, else in nvml-wrapper's; one line.
pub(super) fn error_message(error: &NvmlError) -> String {
    let message = match error {
        NvmlError::LibloadingError(error) => return one_line(&error.to_string()),
        NvmlError::FailedToLoadSymbol(message) => return one_line(message),
        NvmlError::UnexpectedVariant(code) => return format!("error {code}"),
        NvmlError::GpuLost => "GPU is lost",
        NvmlError::ResetRequired => "GPU requires reset",
        NvmlError::DriverNotLoaded => "Driver Not Loaded",
        NvmlError::LibRmVersionMismatch => "Driver/library version mismatch",
        NvmlError::NoPermission => "Insufficient Permissions",
        NvmlError::InsufficientPower => "Insufficient External Power",
        NvmlError::IrqIssue => "Interrupt Request Issue",
        NvmlError::OperatingSystem => "Operating System Blocked Request",
        NvmlError::NotSupported => "Not Supported",
        NvmlError::NotFound => "Not Found",
        NvmlError::Timeout => "Timeout",
        NvmlError::Unknown => "Unknown Error",
        other => return one_line(&other.to_string()),
    };
    message.to_owned()
}

/// The trouble for a library at `path` that cannot be opened or initialised.
pub(super) fn library_problem(error: &NvmlError, path: &str) -> ProbeProblemKind {
    let message = error_message(error);
    match error {
        NvmlError::LibloadingError(_) if is_missing(&message, path) => ProbeProblemKind::Missing(message),
        _ => ProbeProblemKind::Failed(message),
    }
}

/// Whether the loader reports that there is no such library, and not that one of *its* libraries is missing or that
/// it is for another machine. The second text comes from a static program, which cannot load libraries.
fn is_missing(message: &str, path: &str) -> bool {
    (message.contains("No such file or directory") && message.contains(path))
        || message.contains("Dynamic loading not supported")
}

/// Whether the error says that the card is lost until a reset of the card or the machine.
pub(super) fn is_loss(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::InsufficientPower | NvmlError::IrqIssue
    )
}

/// Whether the error only means that this driver or this card lacks the feature.
pub(super) fn is_absence(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::error_text::*;

    #[test]
    fn missing_dependency_is_not_a_missing_library() {
        let ours = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory";
        let its = "libgcc_s.so.1: cannot open shared object file: No such file or directory";
        let musl = "Error loading shared library libnvidia-ml.so.1: No such file or directory";
        assert!(is_missing(ours, "libnvidia-ml.so.1"));
        assert!(is_missing(musl, "libnvidia-ml.so.1"));
        assert!(is_missing("Dynamic loading not supported", "libnvidia-ml.so.1"));
        assert!(!is_missing(its, "libnvidia-ml.so.1"));
        assert!(!is_missing("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32", "libnvidia-ml.so.1"));
    }

    #[test]
    fn nvml_errors_have_nvidia_smi_messages() {
        assert_eq!(error_message(&NvmlError::GpuLost), "GPU is lost");
        assert_eq!(error_message(&NvmlError::LibRmVersionMismatch), "Driver/library version mismatch");
        assert_eq!(error_message(&NvmlError::UnexpectedVariant(1234)), "error 1234");
        let what = library_problem(&NvmlError::DriverNotLoaded, "libnvidia-ml.so.1");
        assert_eq!(what, ProbeProblemKind::Failed("Driver Not Loaded".to_owned()));
    }
}
