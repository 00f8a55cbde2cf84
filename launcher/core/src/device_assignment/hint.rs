//! Hints that fit the request: they do not advise what the user has already done. Pure.

use crate::device::ProbeProblemKind;
use crate::device_assignment::DeviceError;
use crate::spec::device_request::{DeviceRequest, WorkerCount};
use crate::spec::setting::Origin;

/// The error, with a hint that fits the request where a probe failed.
pub(super) fn with_hint(error: DeviceError, request: &DeviceRequest) -> DeviceError {
    let DeviceError::Trouble { trouble } = &error else { return error };
    let hint = hint_without_answer(&trouble.what, request);
    if hint == error.hint() { error } else { error.with_hint(hint) }
}

/// How to launch without a library's answer.
fn hint_without_answer(problem: &ProbeProblemKind, request: &DeviceRequest) -> String {
    let first = match problem {
        ProbeProblemKind::Hung(_) => "give it more time with `--probe-timeout SECONDS`, or do without it",
        _ => "repair the driver, or do without its answer",
    };
    let number = match request.worker_count {
        WorkerCount::Number(_) => "",
        _ => "`--nproc-per-node N`",
    };
    let dependent = options_that_need_devices(request);
    let way = match (dependent.as_str(), number) {
        ("", number) => number.to_owned(),
        (dependent, "") => format!("leave out {dependent}"),
        (dependent, number) => format!("{number} without {dependent}"),
    };
    let cpus = match (&request.worker_count, &request.devices) {
        (WorkerCount::Devices { .. }, _) => None,
        (_, Some(_)) => Some("`--devices none`"),
        (_, None) => Some("`--device-type cpu`"),
    };
    let ways: Vec<&str> = [way.as_str()].into_iter().filter(|way| !way.is_empty()).chain(cpus).collect();
    format!("{first}: {}", ways.join(" or "))
}

/// The given options that need to know the devices.
fn options_that_need_devices(request: &DeviceRequest) -> String {
    joined(request.origins_of_choice())
}

/// The given options that have no effect without accelerators, in a sentence.
pub(super) fn options_without_effect(request: &DeviceRequest) -> Option<String> {
    let given: Vec<&Origin> = [
        request.order.as_ref().map(|order| &order.origin),
        request.visibility.as_ref().map(|visibility| &visibility.origin),
        request.check.as_ref().map(|check| &check.origin),
    ]
    .into_iter()
    .flatten()
    .collect();
    let has = if given.len() == 1 { "has" } else { "have" };
    let is_given = !given.is_empty();
    is_given.then(|| format!("{} {has} no effect: no accelerator is visible", joined(given)))
}

fn joined(origins: Vec<&Origin>) -> String {
    origins.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
