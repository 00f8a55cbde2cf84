//! One visible device per worker: `--virtual-local-rank` (contract 1.12).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rankrun_contract::rank::LocalRank;

use super::error::{CliError, SettingError};
use super::settings::Settings;
use super::torchrun::VIRTUAL_LOCAL_RANK;
use crate::device::Visibility;
use crate::spec::WorkerDevice;

const HIP: &str = "HIP_VISIBLE_DEVICES";
const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The device of each worker: the one that the launcher's own list has in its place, else the one of its number.
///
/// # Errors
/// The list is too short.
pub(super) fn resolve_virtual_devices(
    settings: &Settings<'_>,
    seats: &mut [WorkerDevice],
) -> Result<Visibility, CliError> {
    if !settings.flag(&VIRTUAL_LOCAL_RANK)? {
        return Ok(Visibility::Whole);
    }
    let hip = settings.facts.filled_variable(HIP);
    let (variable, list) = match hip {
        Some(list) => (HIP, Some(list)),
        None => (CUDA, settings.facts.variable(CUDA)),
    };
    let list: Option<Vec<OsString>> = list.map(|list| split_list(list).collect());
    for (rank, seat) in (0..).zip(seats) {
        let device = match &list {
            None => OsString::from(rank.to_string()),
            Some(list) => match list.get(LocalRank(rank).index()) {
                Some(device) => device.clone(),
                None => {
                    let value = settings.facts.variable(variable).unwrap_or_default();
                    let value = value.to_string_lossy().into_owned();
                    return Err(
                        SettingError::TooFewDevices { variable, value, local_rank: LocalRank(rank) }.into()
                    );
                }
            },
        };
        seat.variables.push((CUDA, Some(device.clone())));
        if hip.is_some() {
            seat.variables.push((HIP, Some(device)));
        }
    }
    Ok(Visibility::Own)
}

fn split_list(list: &OsStr) -> impl Iterator<Item = OsString> {
    list.as_bytes().split(|byte| *byte == b',').map(|item| OsStr::from_bytes(item.trim_ascii()).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, interpret};
    use crate::facts::fake::FakeWorld;

    fn devices(count: &str, environment: &[(&str, &str)]) -> Result<(bool, Vec<OsString>), (u8, String)> {
        let line = ["torchrun", "--nproc-per-node", count, "--virtual-local-rank", "--no-python", "true"];
        let mut environment = environment.to_vec();
        environment.push(("PATH", "/usr/bin"));
        let facts = FakeWorld::new().program("/usr/bin/true").facts(&environment);
        match interpret(&line.map(OsString::from), &facts) {
            Ok(Command::Launch(launch)) => {
                let of = |name| {
                    let variables = launch.spec.worker_devices.iter().flat_map(|seat| seat.variables.clone());
                    variables.filter(move |(set, _)| *set == name).filter_map(|(_, value)| value)
                };
                Ok((of(HIP).next().is_some(), of(CUDA).collect()))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err((error.exit_code(), error.to_string())),
        }
    }

    fn is(hip: bool, devices: &[&str]) -> Result<(bool, Vec<OsString>), (u8, String)> {
        Ok((hip, devices.iter().map(OsString::from).collect()))
    }

    #[test]
    fn virtual_local_rank_takes_device_by_position() {
        assert_eq!(devices("2", &[(CUDA, "3,5")]), is(false, &["3", "5"]));
        assert_eq!(devices("2", &[(CUDA, " GPU-a , 5,7")]), is(false, &["GPU-a", "5"]));
        assert_eq!(devices("2", &[]), is(false, &["0", "1"]));
        assert_eq!(devices("2", &[(HIP, "6,4"), (CUDA, "0")]), is(true, &["6", "4"]));
        assert_eq!(devices("1", &[(HIP, ""), (CUDA, "9")]), is(false, &["9"]));
        assert_eq!(devices("1", &[(CUDA, "")]), is(false, &[""]));
    }

    #[test]
    fn short_device_list_error_names_local_rank() {
        let message = |name: &str, list: &str, rank: u32| {
            Err((1, format!("`{name}` is `{list}`, which has no device for local rank {rank}")))
        };
        assert_eq!(devices("2", &[(CUDA, "3")]), message(CUDA, "3", 1));
        assert_eq!(devices("2", &[(CUDA, "")]), message(CUDA, "", 1));
        assert_eq!(devices("4", &[(HIP, "1,2"), (CUDA, "0,1,2,3")]), message(HIP, "1,2", 2));
    }
}
