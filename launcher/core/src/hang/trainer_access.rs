//! The variables by which Hugging Face's `KubeflowCallback` in rank 0 finds the launcher's server.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use rankrun_contract::env::HEARTBEAT;

/// The callback is on where this is set.
pub const SERVER_URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
/// The file of the token.
pub const SERVER_TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";

const NO_PROXY: &str = "no_proxy";
const PROXIES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
const HOST: &str = "127.0.0.1";
/// Its name beside the FIFO of the heartbeats.
const TOKEN_FILE: &str = "trainer.token";

type Environment = [(OsString, OsString)];

/// How the callback reaches the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainerAccess {
    pub url: String,
    /// The file of the token.
    pub token: PathBuf,
    /// The value of `no_proxy`, if the callback would take a proxy.
    pub no_proxy: Option<OsString>,
}

impl TrainerAccess {
    /// Of a server at this port whose workers have their FIFOs in `folder`.
    #[must_use]
    pub fn new(port: impl Display, folder: &Path, environment: &Environment) -> Self {
        let url = format!("http://{HOST}:{port}/");
        Self { url, token: folder.join(TOKEN_FILE), no_proxy: no_proxy(environment) }
    }

    /// For the worker.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let server = [(SERVER_URL, self.url.clone().into()), (SERVER_TOKEN, self.token.clone().into())];
        server.into_iter().chain(self.no_proxy.clone().map(|value| (NO_PROXY, value)))
    }
}

/// True if the user, or Kubeflow, names another server.
#[must_use]
pub fn has_server(environment: &Environment) -> bool {
    find(environment, SERVER_URL).is_some() && variables_of_outer_launcher(environment).is_empty()
}

/// The variables of a server of an outer launcher, which is for another process: its token is beside the FIFO of that
/// process.
#[must_use]
pub fn variables_of_outer_launcher(environment: &Environment) -> &'static [&'static str] {
    let token = find(environment, SERVER_TOKEN).map(Path::new);
    let heartbeat = find(environment, HEARTBEAT).map(Path::new);
    let is_ours = token.zip(heartbeat).is_some_and(|(token, heartbeat)| {
        token.parent() == heartbeat.parent() && token.file_name() == Some(OsStr::new(TOKEN_FILE))
    });
    if is_ours { &[SERVER_URL, SERVER_TOKEN] } else { &[] }
}

/// Python takes the lower-case name first, also if it is empty. `*` is all hosts only if it stands alone.
fn no_proxy(environment: &Environment) -> Option<OsString> {
    PROXIES.iter().find_map(|name| find(environment, name).filter(|value| !value.is_empty()))?;
    let hosts = find(environment, NO_PROXY).or_else(|| find(environment, "NO_PROXY")).unwrap_or_default();
    if hosts.is_empty() {
        return Some(HOST.into());
    }
    if hosts == "*" {
        return None;
    }
    let mut hosts = hosts.to_owned();
    hosts.push(",");
    hosts.push(HOST);
    Some(hosts)
}

fn find<'a>(environment: &'a Environment, wanted: &str) -> Option<&'a OsStr> {
    environment.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn proxy_of_user_is_not_taken_for_the_server() {
        let no_proxy = |variables: &[(&str, &str)]| {
            let access = TrainerAccess::new(7, Path::new("/p"), &environment(variables));
            let value = access.variables().find(|(name, _)| *name == NO_PROXY);
            value.map(|(_, value)| value.into_string().unwrap())
        };
        let proxy = ("http_proxy", "http://proxy:3128");
        assert_eq!(no_proxy(&[]), None);
        assert_eq!(no_proxy(&[("no_proxy", "a")]), None, "without a proxy");
        assert_eq!(no_proxy(&[("ALL_PROXY", "socks5://p")]).as_deref(), Some("127.0.0.1"));
        assert_eq!(no_proxy(&[proxy, ("NO_PROXY", "a.b")]).as_deref(), Some("a.b,127.0.0.1"));
        let both = [proxy, ("NO_PROXY", "a"), ("no_proxy", "b,c")];
        assert_eq!(no_proxy(&both).as_deref(), Some("b,c,127.0.0.1"));
        assert_eq!(no_proxy(&[proxy, ("NO_PROXY", "a"), ("no_proxy", "")]).as_deref(), Some("127.0.0.1"));
        assert_eq!(no_proxy(&[proxy, ("no_proxy", "*")]), None, "all hosts");
    }

    #[test]
    fn server_of_outer_launcher_is_not_one_of_the_user() {
        let url = (SERVER_URL, "http://127.0.0.1:7/");
        let outer = [url, (SERVER_TOKEN, "/p/trainer.token"), (HEARTBEAT, "/p/0.heartbeat")];
        let elsewhere = [url, (SERVER_TOKEN, "/var/run/token"), (HEARTBEAT, "/p/0.heartbeat")];
        for (variables, is_outer, is_users) in [
            (outer.as_slice(), true, false),
            (&outer[..2], false, true),
            (&elsewhere, false, true),
            (&[(SERVER_URL, "")], false, true),
            (&[], false, false),
        ] {
            let environment = environment(variables);
            assert_eq!(!variables_of_outer_launcher(&environment).is_empty(), is_outer, "{variables:?}");
            assert_eq!(has_server(&environment), is_users, "{variables:?}");
        }
    }
}
