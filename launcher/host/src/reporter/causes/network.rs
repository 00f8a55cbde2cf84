//! Addresses: gloo on the loopback, and ports that are taken. Pure.

use super::text::shown;
use super::{Clues, Listener, Surroundings};

/// So many bytes after the word `port`, `already in use` may be of another thing.
const MAX_PORT_DISTANCE: usize = 24;

/// Each host has a loopback of its own.
pub(super) fn gloo_on_loopback(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let is_gloo = |line: &str| {
        let connects = ["connectFullMesh", "timed out connecting", "failed to connect"];
        line.to_ascii_lowercase().contains("gloo")
            && connects.iter().any(|text| line.contains(text))
            && ["[127.", "[::1]"].iter().any(|address| line.contains(address))
    };
    if !clues.several_hosts || !clues.lines().any(is_gloo) {
        return None;
    }
    let named = surroundings.non_empty_variable("GLOO_SOCKET_IFNAME");
    let interface = named.map(|name| format!(" (`GLOO_SOCKET_IFNAME` is `{}` here)", shown(&name)));
    Some(format!(
        "gloo uses the loopback on one of the nodes, and no other host reaches it{}: unset `GLOO_SOCKET_IFNAME` on every \
         node, or set it or `--iface` to the network's interface (`ip -br addr` lists them)",
        interface.unwrap_or_default()
    ))
}

/// A port that the worker wanted to listen on.
pub(super) fn address_in_use(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let lines = || clues.lines().filter(|line| is_in_use(line));
    lines().next()?;
    let Some(port) = lines().rev().find_map(port_in) else {
        return Some(format!(
            "it listens on a port that is taken{}; `ss -ltnp` lists the programs that listen",
            other_rank_hint(clues)
        ));
    };
    let by = match surroundings.listener(port) {
        Some(Listener { pid, name }) => format!(" by pid {pid} (`{}`)", shown(&name)),
        None => String::new(),
    };
    let opens_store = lines().any(|line| line.contains("The server socket has failed to listen"));
    Some(match clues.master {
        Some(master) if master.port == port && master.uses_agent_store => format!(
            "port {port} is `MASTER_PORT`, where the job's own store listens: leave it to `init_process_group`, and \
             choose another port for the script's own server"
        ),
        Some(master) if master.port == port => format!(
            "rank 0 opens the store on `MASTER_PORT`, and port {port} is taken{by}: choose another one with \
             `--master-port`"
        ),
        Some(master) if opens_store => format!(
            "the script opens a store of its own on port {port}, which is taken{by}: leave `MASTER_ADDR` and \
             `MASTER_PORT` as the launcher sets them (port {})",
            master.port
        ),
        _ if by.is_empty() => {
            let other = other_rank_hint(clues);
            format!("port {port} is taken{other}; `ss -ltnp` lists the programs that listen")
        }
        _ => format!("port {port} is taken{by}: end that program, or choose another port"),
    })
}

fn is_in_use(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let is_of_port = || {
        let (before, _) = line.split_once("already in use")?;
        let (_, between) = before.rsplit_once("port ")?;
        Some(number_at_start(between).is_some() && between.len() <= MAX_PORT_DISTANCE)
    };
    // Another word after it makes it another sentence: `address already in use in cache`.
    let is_at_end = |(at, text): (usize, &str)| {
        let rest = line[at + text.len()..].trim_start_matches(' ');
        !rest.starts_with(|letter: char| letter.is_alphanumeric())
    };
    line.contains("eaddrinuse")
        || is_of_port().unwrap_or_default()
        || line.match_indices("address already in use").any(is_at_end)
}

fn other_rank_hint(clues: &Clues<'_>) -> &'static str {
    if clues.workers > 1 {
        ", perhaps by another rank of this job: each rank needs a port of its own, as in `port + LOCAL_RANK`, and none \
         may be `MASTER_PORT`"
    } else {
        ": choose another one"
    }
}

/// The port that an error names: `port: 29500`, `[::]:29500`, `127.0.0.1:29500`, `('0.0.0.0', 29500)`.
fn port_in(line: &str) -> Option<u16> {
    let lower = line.to_ascii_lowercase();
    let by_name = lower.match_indices("port").find_map(|(at, separator)| {
        let is_word = !lower[..at].ends_with(|letter: char| letter.is_ascii_alphanumeric());
        let rest = lower[at + separator.len()..].trim_start_matches([':', '=', ' ']);
        number_at_start(rest).filter(|_| is_word)
    });
    let by_address = || {
        line.match_indices(':').find_map(|(at, _)| {
            let is_host =
                |host: &str| host.ends_with([']', '*']) || host.ends_with("localhost") || ends_in_ipv4(host);
            number_at_start(&line[at + 1..]).filter(|_| is_host(&line[..at]))
        })
    };
    let in_tuple =
        || line.match_indices("', ").find_map(|(at, comma)| number_at_start(&line[at + comma.len()..]));
    by_name.or_else(by_address).or_else(in_tuple)
}

fn ends_in_ipv4(text: &str) -> bool {
    let is_of_address = |letter: char| letter.is_ascii_digit() || letter == '.';
    let before = text.char_indices().rev().find(|(_, letter)| !is_of_address(*letter));
    let start = before.map_or(0, |(at, letter)| at + letter.len_utf8());
    text[start..].parse::<std::net::Ipv4Addr>().is_ok()
}

fn number_at_start(text: &str) -> Option<u16> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok().filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_parsed_from_many_error_formats() {
        for (line, port) in [
            (
                "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false",
                29500,
            ),
            (
                "[W1 socket.cpp:478] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98)",
                29400,
            ),
            (
                "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8080): address already in use",
                8080,
            ),
            ("listen tcp 0.0.0.0:8000: bind: address already in use", 8000),
            ("bind to localhost:6006 failed", 6006),
            ("TensorBoard could not bind to port 6006, it was already in use", 6006),
            ("Ü127.0.0.1:81", 81),
        ] {
            assert_eq!(port_in(line), Some(port), "{line}");
        }
        for line in [
            "OSError: [Errno 98] Address already in use",
            "[/gloo/transport/tcp/pair.cc:152] Address already in use",
            "report 5: Address already in use",
            "port 99999",
            "port 0",
            "12:30:45 Address already in use",
            "",
        ] {
            assert_eq!(port_in(line), None, "{line}");
        }
    }
}
