//! Hints that fit the request: they do not advise what the user has already done. Pure.

use crate::device::ProbeProblemKind;
use crate::device_assignment::DeviceError;
use crate::spec::Unhealthy;
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
    let flag = |is_given: bool, option: &'static str| is_given.then_some(Origin::Option(option));
    let check = request.check.map(|check| match check {
        Unhealthy::Refuse => Origin::Option("check-devices"),
        Unhealthy::Exclude => Origin::Option("exclude-unhealthy"),
    });
    let given = [
        request.devices.as_ref().map(|devices| devices.origin.clone()),
        request.device_type.as_ref().map(|kind| kind.origin.clone()),
        request.order.as_ref().map(|order| order.origin.clone()),
        request.binding.as_ref().map(|binding| binding.origin.clone()),
        flag(request.visibility.is_some(), "device-visibility"),
        check,
        flag(request.oversubscribe, "oversubscribe"),
    ];
    given.into_iter().flatten().map(|origin| origin.to_string()).collect::<Vec<_>>().join(" and ")
}

/// The given options that have no effect without accelerators, in a sentence.
pub(super) fn options_without_effect(request: &DeviceRequest) -> Option<String> {
    let given: Vec<&str> = [
        request.order.as_ref().map(|_| "`--device-order`"),
        request.visibility.map(|_| "`--device-visibility`"),
        request.check.map(|check| match check {
            Unhealthy::Refuse => "`--check-devices`",
            Unhealthy::Exclude => "`--exclude-unhealthy`",
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let has = if given.len() == 1 { "has" } else { "have" };
    let text = format!("{} {has} no effect: no accelerator is visible", given.join(" and "));
    (!given.is_empty()).then_some(text)
}
