//! The file, written and read.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::{Card, Fault, Lost, Machine, Mig, NvLink, Path, Vendor};

const VENDORS: [(Vendor, &str); 4] =
    [(Vendor::Nvidia, "nvidia"), (Vendor::Amd, "amd"), (Vendor::Intel, "intel"), (Vendor::Ascend, "ascend")];

const PATHS: [(Path, &str); 5] =
    [(Path::Pix, "pix"), (Path::Pxb, "pxb"), (Path::Phb, "phb"), (Path::Node, "node"), (Path::Sys, "sys")];

const LOSSES: [(Lost, &str); 2] = [(Lost::Handle, "handle"), (Lost::Calls, "calls")];

fn word_of<T: Copy + PartialEq>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|(each, _)| *each == value).map_or("", |(_, name)| name)
}

fn value_of<T: Copy>(table: &[(T, &str)], name: &str) -> Result<T, String> {
    let found = table.iter().find(|(_, each)| *each == name);
    found.map(|(value, _)| *value).ok_or_else(|| format!("unknown word: `{name}`"))
}

impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver {}\ncuda {}", self.driver, self.cuda)?;
        for (function, fault) in &self.faults {
            match fault {
                Fault::Error(code) => writeln!(f, "on {function} error {code}")?,
                Fault::Hang => writeln!(f, "on {function} hang")?,
                Fault::Crash => writeln!(f, "on {function} crash")?,
            }
        }
        for (one, other, path) in &self.paths {
            writeln!(f, "path {one} {other} {}", word_of(&PATHS, *path))?;
        }
        self.cards.iter().try_for_each(|card| writeln!(f, "card\n{card}"))
    }
}

impl Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn known(f: &mut fmt::Formatter<'_>, key: &str, value: Option<impl Display>) -> fmt::Result {
            value.map_or(Ok(()), |value| writeln!(f, "  {key} {value}"))
        }
        writeln!(f, "  vendor {}", word_of(&VENDORS, self.vendor))?;
        writeln!(f, "  name {}\n  uuid {}\n  pci {}", self.name, self.uuid, self.pci)?;
        writeln!(f, "  memory {}\n  used {}\n  speed {}", self.memory, self.used, self.speed)?;
        writeln!(f, "  tiles {}", self.tiles)?;
        known(f, "numa", self.numa)?;
        known(f, "cpus", self.cpus.as_ref())?;
        known(f, "capability", self.capability.map(|(major, minor)| format!("{major}.{minor}")))?;
        known(f, "temperature", self.temperature)?;
        known(f, "slowdown", self.slowdown)?;
        known(f, "power", self.power)?;
        known(f, "limit", self.limit)?;
        known(f, "default-limit", self.default_limit)?;
        known(f, "clock", self.clock)?;
        known(f, "max-clock", self.max_clock)?;
        known(f, "memory-clock", self.memory_clock)?;
        known(f, "utilisation", self.utilisation)?;
        known(f, "throttle", self.throttle.map(|bits| format!("{bits:#x}")))?;
        known(f, "ecc", self.ecc)?;
        known(f, "ecc-corrected", self.ecc_corrected)?;
        known(f, "serial", self.serial.as_ref())?;
        for (link, [flit, data, replay, recovery]) in &self.nvlink_errors {
            writeln!(f, "  nvlink-errors {link} {flit} {data} {replay} {recovery}")?;
        }
        self.nvlinks_down.iter().try_for_each(|link| writeln!(f, "  nvlink-down {link}"))?;
        known(f, "retired", self.retired)?;
        known(f, "retirement", self.retirement_pending.then_some("pending"))?;
        known(f, "remapped", self.remapped)?;
        known(f, "mig-mode", self.mig_mode.then_some("on"))?;
        known(f, "lost", self.lost.map(|lost| word_of(&LOSSES, lost)))?;
        self.processes.iter().try_for_each(|(pid, bytes)| writeln!(f, "  process {pid} {bytes}"))?;
        self.mig.iter().try_for_each(|mig| writeln!(f, "  mig {} {}", mig.uuid, mig.memory))?;
        self.nvlinks.iter().try_for_each(|links| match links.to {
            Some(card) => writeln!(f, "  nvlink {card} {}", links.count),
            None => writeln!(f, "  nvlink switch {}", links.count),
        })
    }
}

impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut machine = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            let read = match (key, machine.cards.last_mut()) {
                ("card", _) => {
                    machine.cards.push(Card::default());
                    Ok(())
                }
                (_, Some(card)) => card.read(key, value),
                (_, None) => machine.read(key, value),
            };
            read.map_err(|error| format!("line `{line}`: {error}"))?;
        }
        Ok(machine)
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("no number: `{text}`"))
}

fn pair(text: &str) -> Result<(&str, &str), String> {
    text.split_once(' ').ok_or_else(|| format!("two values are needed: `{text}`"))
}

impl Machine {
    fn read(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "driver" => value.clone_into(&mut self.driver),
            "cuda" => self.cuda = number(value)?,
            "on" => {
                let (function, what) = pair(value)?;
                let fault = match what.split_once(' ') {
                    Some(("error", code)) => Fault::Error(number(code)?),
                    None if what == "hang" => Fault::Hang,
                    None if what == "crash" => Fault::Crash,
                    _ => return Err(format!("unknown fault: `{what}`")),
                };
                self.faults.push((function.to_owned(), fault));
            }
            "path" => {
                let (one, rest) = pair(value)?;
                let (other, path) = pair(rest)?;
                self.paths.push((number(one)?, number(other)?, value_of(&PATHS, path)?));
            }
            _ => return Err("unknown word".to_owned()),
        }
        Ok(())
    }
}

impl Card {
    fn read(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "vendor" => self.vendor = value_of(&VENDORS, value)?,
            "name" => value.clone_into(&mut self.name),
            "uuid" => value.clone_into(&mut self.uuid),
            "pci" => self.pci = value.parse()?,
            "memory" => self.memory = number(value)?,
            "used" => self.used = number(value)?,
            "speed" => self.speed = number(value)?,
            "tiles" => self.tiles = number(value)?,
            "lost" => self.lost = Some(value_of(&LOSSES, value)?),
            "mig-mode" => self.mig_mode = true,
            "process" => {
                let (pid, bytes) = pair(value)?;
                self.processes.push((number(pid)?, number(bytes)?));
            }
            "mig" => {
                let (uuid, memory) = pair(value)?;
                self.mig.push(Mig { uuid: uuid.to_owned(), memory: number(memory)? });
            }
            "nvlink" => {
                let (to, count) = pair(value)?;
                let to = if to == "switch" { None } else { Some(number(to)?) };
                self.nvlinks.push(NvLink { to, count: number(count)? });
            }
            _ => return self.read_state(key, value),
        }
        Ok(())
    }

    fn read_state(&mut self, key: &str, value: &str) -> Result<(), String> {
        let place = match key {
            "numa" => &mut self.numa,
            "temperature" => &mut self.temperature,
            "slowdown" => &mut self.slowdown,
            "power" => &mut self.power,
            "limit" => &mut self.limit,
            "default-limit" => &mut self.default_limit,
            "clock" => &mut self.clock,
            "max-clock" => &mut self.max_clock,
            "memory-clock" => &mut self.memory_clock,
            "utilisation" => &mut self.utilisation,
            "retired" => &mut self.retired,
            "remapped" => &mut self.remapped,
            _ => return self.read_others(key, value),
        };
        *place = Some(number(value)?);
        Ok(())
    }

    fn read_others(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "cpus" => self.cpus = Some(value.to_owned()),
            "ecc" => self.ecc = Some(number(value)?),
            "ecc-corrected" => self.ecc_corrected = Some(number(value)?),
            "serial" => self.serial = Some(value.to_owned()),
            "nvlink-errors" => {
                let (link, counts) = pair(value)?;
                let counts: Result<Vec<u64>, String> = counts.split(' ').map(number).collect();
                let counts = counts?.try_into().map_err(|_| "four numbers are needed")?;
                self.nvlink_errors.push((number(link)?, counts));
            }
            "nvlink-down" => self.nvlinks_down.push(number(value)?),
            "retirement" => self.retirement_pending = true,
            "capability" => {
                let (major, minor) = value.split_once('.').ok_or("`major.minor` is needed")?;
                self.capability = Some((number(major)?, number(minor)?));
            }
            "throttle" => {
                let bits = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
                self.throttle = Some(bits.ok_or("bits are needed, such as `0x20`")?);
            }
            _ => return Err("unknown word".to_owned()),
        }
        Ok(())
    }
}
