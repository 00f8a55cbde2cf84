//! Advice that can be followed: in the words of the name under which we run, and beside what was already said. Pure.

use super::wishes::{Count, Wishes};
use crate::cli::error::{CliError, Origin, SettingError};
use crate::cli::grammar::tables;
use crate::cli::option::{Family, Kind};
use crate::cli::run::{CHECK_DEVICES, DEVICE_VISIBILITY, EXCLUDE_UNHEALTHY, OVERSUBSCRIBE};
use crate::device::ProbeProblemKind;
use crate::device::assignment::DeviceError;
use crate::spec::{CliFlavor, Unhealthy};

/// The error with the hint that fits.
pub(super) fn advised(error: CliError, wishes: &Wishes, cli_flavor: CliFlavor) -> CliError {
    let CliError::Setting(SettingError::Devices(error)) = error else { return error };
    let plain = error.hint();
    let hint = match &*error {
        DeviceError::Trouble { trouble } => without_the_answer(&trouble.what, wishes),
        _ => plain.clone(),
    };
    let hint = match cli_flavor {
        CliFlavor::Rankrun => hint,
        CliFlavor::Torchrun => as_variables(&hint),
    };
    if hint == plain {
        return CliError::Setting(SettingError::Devices(error));
    }
    DeviceError::Advised { error, hint }.into()
}

/// The same for an error of which nothing else is known.
pub(super) fn in_torchruns_words(error: CliError) -> CliError {
    let CliError::Setting(SettingError::Devices(error)) = error else { return error };
    let hint = as_variables(&error.hint());
    DeviceError::Advised { error, hint }.into()
}

/// How to do without a library's answer, where so much was said.
fn without_the_answer(what: &ProbeProblemKind, wishes: &Wishes) -> String {
    let first = match what {
        ProbeProblemKind::Hung(_) => "give it more time with `--probe-timeout SECONDS`, or do without it",
        _ => "repair the driver, or do without its answer",
    };
    let number = match wishes.count {
        Count::Number(_) => "",
        _ => "`--nproc-per-node N`",
    };
    let needing = needing(wishes);
    let way = match (needing.as_str(), number) {
        ("", number) => number.to_owned(),
        (needing, "") => format!("leave out {needing}"),
        (needing, number) => format!("{number} without {needing}"),
    };
    let cpus = match (&wishes.count, &wishes.devices) {
        (Count::Of { .. }, _) => None,
        (_, Some(_)) => Some("`--devices none`"),
        (_, None) => Some("`--device-type cpu`"),
    };
    let ways: Vec<&str> = [way.as_str()].into_iter().filter(|way| !way.is_empty()).chain(cpus).collect();
    format!("{first}: {}", ways.join(" or "))
}

/// What was said that nobody can do without knowing the devices.
fn needing(wishes: &Wishes) -> String {
    let flag = |is_given: bool, row: &'static str| is_given.then_some(Origin::Option(row));
    let check = wishes.check.map(|check| match check.unhealthy {
        Unhealthy::Refuse => Origin::Option(CHECK_DEVICES.long),
        Unhealthy::Exclude => Origin::Option(EXCLUDE_UNHEALTHY.long),
    });
    let said = [
        wishes.devices.as_ref().map(|said| said.origin.clone()),
        wishes.kind.as_ref().map(|said| said.origin.clone()),
        wishes.order.as_ref().map(|said| said.origin.clone()),
        wishes.binding.as_ref().map(|said| said.origin.clone()),
        flag(wishes.visibility.is_some(), DEVICE_VISIBILITY.long),
        check,
        flag(wishes.oversubscribe, OVERSUBSCRIBE.long),
    ];
    said.into_iter().flatten().map(|origin| origin.to_string()).collect::<Vec<_>>().join(" and ")
}

/// What has no effect without accelerators, as far as it was said.
pub(super) fn without_effect(wishes: &Wishes) -> Option<String> {
    let said: Vec<String> = [
        wishes.order.as_ref().map(|_| "`--device-order`"),
        wishes.visibility.map(|_| "`--device-visibility`"),
        wishes.check.map(|check| match check.unhealthy {
            Unhealthy::Refuse => "`--check-devices`",
            Unhealthy::Exclude => "`--exclude-unhealthy`",
        }),
    ]
    .into_iter()
    .flatten()
    .map(str::to_owned)
    .collect();
    let has = if said.len() == 1 { "has" } else { "have" };
    let text = format!("{} {has} no effect: no accelerator is visible", said.join(" and "));
    (!said.is_empty()).then_some(text)
}

/// Our own options have no place in torchrun's grammar; there their variables do the same.
fn as_variables(hint: &str) -> String {
    let spans = hint.split('`').enumerate();
    // Every second span stands between backticks.
    let spans = spans.map(|(at, span)| if at % 2 == 1 { as_variable(span) } else { span.to_owned() });
    spans.collect::<Vec<_>>().join("`")
}

fn as_variable(span: &str) -> String {
    let mut words = span.split(' ').peekable();
    let mut said: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        let row = word.strip_prefix("--").and_then(|name| {
            tables(CliFlavor::Rankrun).find(|row| row.long == name && row.family == Family::Rankrun)
        });
        let Some((row, variable)) = row.and_then(|row| Some((row, row.variable()?))) else {
            said.push(word.to_owned());
            continue;
        };
        let value = words.next_if(|next| row.kind != Kind::Flag && !next.starts_with("--"));
        said.push(match (value, row.kind) {
            (Some(value), _) => format!("{variable}={value}"),
            (None, Kind::Flag) => format!("{variable}=1"),
            (None, _) => variable,
        });
    }
    said.join(" ")
}

#[cfg(test)]
mod tests {
    use super::as_variables;

    #[test]
    fn torchrun_hints_name_variables_for_rankrun_options() {
        for (hint, said) in [
            ("more with `--probe-timeout SECONDS`", "more with `RANKRUN_PROBE_TIMEOUT=SECONDS`"),
            (
                "`--nproc-per-node N` or `--device-type cpu`",
                "`--nproc-per-node N` or `RANKRUN_DEVICE_TYPE=cpu`",
            ),
            ("`--exclude-unhealthy` goes on", "`RANKRUN_EXCLUDE_UNHEALTHY=1` goes on"),
            ("`--device-type cuda --devices 1,2`", "`RANKRUN_DEVICE_TYPE=cuda RANKRUN_DEVICES=1,2`"),
            (
                "without `--devices` and `--device-order`",
                "without `RANKRUN_DEVICES` and `RANKRUN_DEVICE_ORDER`",
            ),
            ("`rankrun devices` shows them", "`rankrun devices` shows them"),
        ] {
            assert_eq!(as_variables(hint), said);
        }
    }
}
