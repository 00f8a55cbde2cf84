//! What to write in place of a value that a setting refuses. Pure.

use super::{Expected, Origin};
use crate::cli::option::{Kind, LaunchOption};
use crate::cli::suggest::nearest_of;
use clap::Arg;

/// Words of other vendors and launchers for a type of device.
const DEVICE_WORDS: &[(&[&str], &str)] = &[
    (&["gpu", "nvidia", "geforce", "h100"], "`cuda` is NVIDIA's, `rocm` AMD's"),
    (&["amd", "hip", "radeon"], "AMD's GPUs are `rocm`"),
    (&["intel", "arc"], "Intel's GPUs are `xpu`, Gaudi accelerators `hpu`"),
    (&["gaudi", "habana"], "Gaudi accelerators are `hpu`"),
    (&["ascend"], "Ascend accelerators are `npu`"),
    (&["metal", "apple"], "Apple's GPUs are `mps`"),
    (&["none", "cpus"], "`cpu` runs the workers on the CPUs"),
];

/// The hint for a value that is outside of a setting's range, or no value of it.
pub(super) fn hint_for_setting(origin: &Origin, expected: &Expected, value: &str) -> String {
    let value = value.trim();
    if value.is_empty() {
        return hint_for_empty(origin);
    }
    let usual = || format!("write it as in `{}`", written(origin, expected.example));
    (expected.advice)(origin, value).unwrap_or_else(usual)
}

/// The hint for a value that is not of the option's type.
pub(in crate::cli) fn hint_for_type(option: &Arg, origin: &Origin, value: &str) -> String {
    let value = value.trim();
    if value.is_empty() {
        return hint_for_empty(origin);
    }
    // As TOML has a text.
    let unquoted = value.trim_matches(['"', '\'']);
    if unquoted != value && unquoted.parse::<f64>().is_ok() {
        return format!("write it without quotes, as in `{}`", written(origin, unquoted));
    }
    if value.ends_with(".py") || value.starts_with("./") {
        let example = written(origin, if option.long_name() == "master-port" { "29500" } else { "1" });
        return format!("the option has no value, and takes the script for it: write `{example} {value}`");
    }
    if option.long_name() == "max-restarts" {
        return restarts_hint(origin, value);
    }
    match option.kind() {
        Kind::Int => {
            let example = if option.long_name() == "master-port" { "29500" } else { "1" };
            let number = whole(value).unwrap_or_else(|| example.to_owned());
            format!("write a number without a point, as in `{}`", written(origin, &number))
        }
        Kind::Float => {
            let example = if option.long_name() == "restart-jitter" { "0.1" } else { "1.5" };
            format!("write a number with a point, as in `{}`", written(origin, example))
        }
        Kind::RankOrWord => format!("write it as in `{}`", written(origin, "0")),
        Kind::Choice(choices) => hint_for_choice(option, origin, (&choices, value)),
        Kind::Flag => format!("write `{}` or `{}`", written(origin, "true"), written(origin, "false")),
        // A date or a time of day.
        Kind::Text if value.starts_with(|letter: char| letter.is_ascii_digit()) => {
            format!("put it in quotes, as in `{}`", written(origin, value))
        }
        Kind::Text => "write a text in quotes, or a number".to_owned(),
    }
}

/// The hint where an option's value is missing: most often the shell left an unset variable out.
pub(super) fn hint_for_missing(option: &Arg) -> String {
    let name =
        option.value_name().split(['|', '[']).next().filter(|name| !name.is_empty()).unwrap_or("VALUE");
    let again = if option.kind() == Kind::Text {
        format!("; a value that begins with `-` is written `--{}=VALUE`", option.long_name())
    } else {
        String::new()
    };
    format!(
        "write `--{} {name}`; if the value comes from a shell variable, check that it is set{again}",
        option.long_name()
    )
}

fn hint_for_empty(origin: &Origin) -> String {
    match origin {
        Origin::Option(name) => {
            format!(
                "if the value comes from a shell variable, check that it is set; else leave `--{name}` out"
            )
        }
        Origin::Variable(name) => format!("give `{name}` a value, or unset it"),
        Origin::File(place) => format!("give `{}` a value, or remove the line", place.key),
    }
}

pub(in crate::cli) fn hint_for_restarts(origin: &Origin, value: &str) -> Option<String> {
    Some(restarts_hint(origin, value))
}

fn restarts_hint(origin: &Origin, value: &str) -> String {
    const UNLIMITED: [&str; 8] =
        ["-1", "always", "forever", "inf", "infinite", "infinity", "none", "unlimited"];
    match whole(value) {
        Some(number) => format!("write a number without a point, as in `{}`", written(origin, &number)),
        None if !UNLIMITED.contains(&value.to_lowercase().as_str()) => {
            format!("write a whole number, as in `{}`", written(origin, "3"))
        }
        None => format!(
            "no value means `without limit`: take a large number, as in `{}`; with `--restart-window 1h` only the \
             restarts of the last hour count",
            written(origin, "1000000")
        ),
    }
}

fn hint_for_choice(option: &Arg, origin: &Origin, (choices, value): (&[String], &str)) -> String {
    let small = value.to_lowercase().replace('_', "-");
    if option.long_name() == "device-type"
        && let Some((_, words)) = DEVICE_WORDS.iter().find(|(words, _)| words.contains(&small.as_str()))
    {
        return (*words).to_owned();
    }
    let choices = || choices.iter().map(String::as_str);
    let begun = || choices().find(|choice| small.len() >= 3 && choice.starts_with(&small));
    let meant = choices().find(|choice| *choice == small).or_else(begun);
    match meant.or_else(|| nearest_of(&small, choices())) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            format!("write one of them, as in `{}`", written(origin, choices().next().unwrap_or_default()))
        }
    }
}

pub(in crate::cli) fn hint_for_nodes(origin: &Origin, value: &str) -> Option<String> {
    let (low, high) = value.split_once([':', '-', ','])?;
    let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    let range = written(origin, &format!("{}:{}", low.min(high), low.max(high)));
    Some(format!("a range is written `{range}`, the smaller number first"))
}

pub(in crate::cli) fn hint_for_port(origin: &Origin, value: &str) -> Option<String> {
    let is_too_high = value.parse::<u64>().is_ok_and(|port| port > 65_535);
    is_too_high.then(|| format!("no port is above 65535; write it as in `{}`", written(origin, "29500")))
}

pub(in crate::cli) fn hint_for_streams(origin: &Origin, value: &str) -> Option<String> {
    let number = match value.to_lowercase().as_str() {
        "both" | "all" | "true" | "yes" | "on" => "3",
        "stdout" | "out" => "1",
        "stderr" | "err" => "2",
        "none" | "false" | "no" | "off" => "0",
        _ => return None,
    };
    Some(format!("write `{}`: 1 is stdout, 2 is stderr, 3 is both, 0 is none", written(origin, number)))
}

pub(in crate::cli) fn hint_for_size(origin: &Origin, value: &str) -> Option<String> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| format!("write the unit too, as in `{}`", written(origin, &format!("{value}GiB"))))
}

pub(in crate::cli) fn hint_for_port_range(origin: &Origin, value: &str) -> Option<String> {
    let (first, last) = value.split_once(['-', ':', ','])?;
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let range = format!("{}-{}", first.min(last).max(1), first.max(last).max(1));
    Some(format!("write `{}`", written(origin, &range)))
}

pub(in crate::cli) fn hint_for_workers(origin: &Origin, value: &str) -> Option<String> {
    if let Some(number) = whole(value) {
        return Some(format!("write a number without a point: `{}`", written(origin, &number)));
    }
    if value.parse::<i128>().is_ok_and(|number| number <= 0) {
        return Some(
            "a node has at least one worker; without the option there is one for each GPU".to_owned(),
        );
    }
    let word = nearest_of(&value.to_lowercase(), ["auto", "cpu", "gpu", "cuda", "rocm", "xpu"].into_iter())?;
    Some(format!("did you mean `{word}`?"))
}

pub(in crate::cli) fn hint_for_time(origin: &Origin, value: &str) -> Option<String> {
    if value.parse::<f64>() == Ok(0.0) {
        return Some(match origin {
            Origin::Option(name) => format!("leave `--{name}` out where no time is meant"),
            Origin::Variable(name) => format!("unset `{name}` where no time is meant"),
            Origin::File(place) => format!("remove `{}` where no time is meant", place.key),
        });
    }
    let pointed = value.replace(',', ".");
    (pointed != value && pointed.parse::<f64>().is_ok())
        .then(|| format!("write a point in place of the comma: `{}`", written(origin, &pointed)))
}

/// An address with a wrong port, or one that no address has.
pub(in crate::cli) fn hint_for_place(origin: &Origin, value: &str) -> Option<String> {
    place_hint(origin, value).or_else(|| {
        let (host, port) = value.rsplit_once(':')?;
        Some(match port.parse::<u64>() {
            Ok(65_536..) => format!("no port is above 65535; the usual one is 29400: `{host}:29400`"),
            Ok(_) => return None,
            Err(_) => format!("`{port}` is not a port number; write it as in `{host}:29400`"),
        })
    })
}

/// An address with a scheme, a path, several hosts or an unset variable.
fn place_hint(origin: &Origin, value: &str) -> Option<String> {
    if let Some((scheme, rest)) = value.split_once("://") {
        let place = written(origin, rest.split('/').next().unwrap_or_default());
        return Some(format!("leave `{scheme}://` out: `{place}`"));
    }
    if value.contains(',') {
        return Some(
            "name one host: the launcher on it hosts the store, and all nodes name the same".to_owned(),
        );
    }
    if let Some((place, _)) = value.split_once('/') {
        return Some(format!("leave the path out: `{}`", written(origin, place)));
    }
    if value.starts_with(':') || value.ends_with(':') {
        return Some(
            "the host or the port is empty: if the value comes from a shell variable, check that it is set"
                .to_owned(),
        );
    }
    None
}

/// An IPv6 address without brackets.
pub(in crate::cli) fn hint_for_brackets(origin: &Origin, value: &str) -> Option<String> {
    place_hint(origin, value).or_else(|| {
        let (host, port) = value.rsplit_once(':')?;
        Some(format!("write `{}`", written(origin, &format!("[{host}]:{port}"))))
    })
}

/// The hint for a name that only Python could load.
pub(super) fn hint_for_plugin(value: &str, built_in: &[&str]) -> String {
    if matches!(value, "nccl" | "gloo" | "mpi" | "ucc") {
        return format!(
            "leave it out: the program chooses `{value}` itself, in `init_process_group(backend=\"{value}\")`"
        );
    }
    let names: Vec<String> = built_in.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        return "leave it out".to_owned();
    }
    format!("leave it out, or take one that is built in: {}", names.join(" or "))
}

/// `--master-addr node0:29500`: the port has an option of its own.
pub(in crate::cli) fn hint_for_port_in_host(origin: &Origin, value: &str) -> Option<String> {
    let (host, port) = value.split_once(':').filter(|_| *origin == Origin::Option("master-addr"))?;
    let is_port = port.parse::<u16>().is_ok() && !host.is_empty();
    is_port.then(|| format!("the port has its own option: `--master-addr {host} --master-port {port}`"))
}

/// `8.0` as `8`.
fn whole(value: &str) -> Option<String> {
    let (number, fraction) = value.split_once('.')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && fraction.bytes().all(|byte| byte == b'0')).then(|| number.to_owned())
}

/// The setting with this value, in the form of the place that said it.
fn written(origin: &Origin, value: &str) -> String {
    match origin {
        Origin::Option(name) => format!("--{name} {value}"),
        Origin::Variable(name) => format!("{name}={value}"),
        Origin::File(place) => {
            let key = place.key.rsplit('.').next().unwrap_or_default();
            let is_bare = value.parse::<f64>().is_ok() || matches!(value, "true" | "false");
            if is_bare { format!("{key} = {value}") } else { format!("{key} = \"{value}\"") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTION: Origin = Origin::Option("x");

    #[test]
    fn setting_hint_suggests_valid_value() {
        type Advice = fn(&Origin, &str) -> Option<String>;
        for (advice, value, hint) in [
            (hint_for_workers as Advice, "8.0", "`--x 8`"),
            (hint_for_workers, "gpus", "did you mean `gpu`?"),
            (hint_for_workers, "-1", "at least one worker"),
            (hint_for_workers, "four", "`--x 4`"),
            (hint_for_nodes, "4:2", "`--x 2:4`"),
            (hint_for_nodes, "1-4", "`--x 1:4`"),
            (hint_for_nodes, "many", "`--x 4`"),
            (hint_for_restarts, "-1", "`--x 1000000`"),
            (hint_for_port, "99999", "no port is above 65535"),
            (hint_for_port, "-1", "`--x 4`"),
            (hint_for_place, "tcp://a:1/b", "leave `tcp://` out: `--x a:1`"),
            (hint_for_place, "a:1/b", "leave the path out: `--x a:1`"),
            (hint_for_place, "a:1,b:1", "name one host"),
            (hint_for_place, ":", "check that it is set"),
            (hint_for_place, "a:http", "`http` is not a port number"),
            (hint_for_brackets, "fd00::1:5", "`--x [fd00::1]:5`"),
            (hint_for_time, "1,5", "`--x 1.5`"),
            (hint_for_time, "0", "leave `--x` out"),
            (hint_for_time, "2x", "`--x 4`"),
            (hint_for_streams, "both", "`--x 3`"),
            (hint_for_size, "4", "`--x 4GiB`"),
            (hint_for_port_range, "9-5", "`--x 5-9`"),
            (hint_for_nodes, " ", "check that it is set"),
        ] {
            let expected = Expected::new("a value", "4").advised(advice);
            let said = hint_for_setting(&OPTION, &expected, value);
            assert!(said.contains(hint), "{value}: {said}");
        }
    }

    #[test]
    fn setting_hint_uses_form_of_its_origin() {
        let variable = Origin::Variable("PET_X".to_owned());
        let expected = Expected::new("a port", "29500");
        assert_eq!(hint_for_setting(&variable, &expected, ""), "give `PET_X` a value, or unset it");
        assert!(hint_for_setting(&variable, &expected, "x").contains("`PET_X=29500`"));
    }
}
