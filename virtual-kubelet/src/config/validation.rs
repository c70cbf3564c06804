//! Turns layers into the effective configuration: defaults, and checks that involve several values.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use vk_provider::ConfigAlias;

use super::{
    AdminAddr, Admission, Auth, DaemonSets, DebugEndpoints, EffectiveConfig, GoDuration, ImpersonateNodes,
    LayerStack, Log, LogFormat, OnShutdown, Pods, Problem, RefusedPods, Settings, Shutdown, Streaming,
    Timing, Tls, lease, listen::Listen, nodes, placement, value_types::LogLevel,
};

/// The Go original's metrics port, and the kubelet's read-only port. On loopback, because callers are not authenticated.
const METRICS_ADDR: Listen = Listen { address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 10_255 };
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Like the kubelet: the lease is the heartbeat, so the status is rarely needed.
const STATUS_INTERVAL: Duration = Duration::from_mins(5);
/// Long enough for a restart of the API server, short enough to notice a wrong address.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Like the kubelet and node-cli. The 30 seconds of the Go original's command disconnect idle shells.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_hours(4);
const STREAM_CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Like the kubelet.
const EVENTS_PER_SECOND: u32 = 50;
/// The kubelet's defaults.
const TOKEN_TTL: Duration = Duration::from_mins(2);
const AUTHORIZED_TTL: Duration = Duration::from_mins(5);
const UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);

/// What the validation depends on besides the layers.
pub struct ValidationContext<'a> {
    /// The names of the known providers.
    pub providers: &'a [&'a str],
    /// The environment variables of a provider that are set, with their values: see [`Factory::variables`](vk_provider::Factory::variables).
    pub provider_variables: &'a dyn Fn(&str) -> Vec<(ConfigAlias, String)>,
    /// The default of `stateDir`: see [`default_state_dir`].
    pub state_dir: PathBuf,
    /// Reads a file that the configuration names.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// The default state directory: in `/var/lib` for root, otherwise in the user's state directory.
pub fn default_state_dir(root: bool, lookup: impl Fn(&str) -> Option<String>) -> PathBuf {
    let folder = |variable: &str| lookup(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if root {
        return "/var/lib/virtual-kubelet".into();
    }
    // A user without a home directory gets a directory that is not shared with root.
    folder("XDG_STATE_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| "/var/tmp".into())
        .join("virtual-kubelet")
}

// === impl LayerStack ===

impl LayerStack {
    /// The effective configuration, or all problems.
    pub fn resolve(&self, host: &ValidationContext<'_>) -> Result<EffectiveConfig, Vec<Problem>> {
        let settings = self.merged().map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let resolved = resolve(&settings, host, &mut problems);
        // A name from the environment is only a default; a name from the file or a flag must be used.
        let meant = self.file.has("nodeName") || self.flags.has("nodeName");
        let used = settings.nodes.is_empty()
            || settings.nodes.iter().any(|node| node.name.is_none() && node.name_pattern.is_none());
        if meant && !used {
            problems.push(Problem::new(
                "nodeName",
                "is given, but every node of `nodes` has a name: leave one of them out",
            ));
        }
        if problems.is_empty() { Ok(resolved) } else { Err(problems) }
    }
}

fn resolve(
    settings: &Settings,
    host: &ValidationContext<'_>,
    problems: &mut Vec<Problem>,
) -> EffectiveConfig {
    let metrics_addr = settings.metrics_addr.map_or(Some(METRICS_ADDR), |AdminAddr(address)| address);
    if let Some(url) = settings.api_server.as_ref().filter(|url| !url.is_empty()) {
        problems.extend(check_url(url));
    }
    let nodes = nodes::expand(settings, metrics_addr, host, problems);
    let shutdown = Shutdown {
        timeout: or(settings.shutdown.timeout, SHUTDOWN_TIMEOUT),
        node: settings.shutdown.node.unwrap_or(OnShutdown::Leave),
    };
    let placement = placement::resolve(&settings.placement, problems);
    EffectiveConfig {
        kubeconfig: path(settings.kubeconfig.as_ref()),
        bootstrap_kubeconfig: bootstrap(settings, nodes.len(), shutdown.node, problems),
        impersonate_nodes: settings.impersonate_nodes.unwrap_or(ImpersonateNodes::Auto),
        api_server: settings.api_server.clone().filter(|url| !url.is_empty()),
        client_kubeconfig: path(settings.client_kubeconfig.as_ref()),
        ignore_labels: settings.ignore_labels.clone(),
        nodes,
        timing: timing(settings, problems),
        pods: pods(settings, problems),
        shutdown,
        metrics_addr,
        log: Log {
            level: settings.log.level.clone().unwrap_or_else(LogLevel::info),
            format: settings.log.format.unwrap_or(LogFormat::Auto),
        },
        startup_timeout: Some(or(settings.startup_timeout, STARTUP_TIMEOUT))
            .filter(|timeout| !timeout.is_zero()),
        streaming: Streaming {
            idle_timeout: positive(
                "streamIdleTimeout",
                settings.stream_idle_timeout,
                STREAM_IDLE_TIMEOUT,
                problems,
            ),
            creation_timeout: positive(
                "streamCreationTimeout",
                settings.stream_creation_timeout,
                STREAM_CREATION_TIMEOUT,
                problems,
            ),
            web_sockets: settings.stream_web_sockets.unwrap_or(true),
        },
        debug: DebugEndpoints {
            system_logs: path(settings.system_logs.as_ref()),
            profiling: settings.profiling.unwrap_or(false),
        },
        state_dir: path(settings.state_dir.as_ref()).unwrap_or_else(|| host.state_dir.clone()),
        tls: tls(settings, problems),
        auth: Auth {
            token_ttl: or_default(settings.auth.token_ttl, TOKEN_TTL),
            authorized_ttl: or_default(settings.auth.authorized_ttl, AUTHORIZED_TTL),
            unauthorized_ttl: or_default(settings.auth.unauthorized_ttl, UNAUTHORIZED_TTL),
        },
        placement_namespace: placement.namespace,
        conversion: placement.conversion,
        placement: placement.parts,
    }
}

/// Bootstrapping yields the identity of exactly one node, with a node's permissions.
fn bootstrap(
    settings: &Settings,
    nodes: usize,
    on_shutdown: OnShutdown,
    problems: &mut Vec<Problem>,
) -> Option<PathBuf> {
    let given = path(settings.bootstrap_kubeconfig.as_ref())?;
    if nodes > 1 {
        let message = format!(
            "yields the identity of one node, but there are {nodes}: remove it and use a ServiceAccount"
        );
        problems.push(Problem::new("bootstrapKubeconfig", message));
    }
    if on_shutdown == OnShutdown::Delete {
        let message = "a bootstrapped node may not delete its Node: use `leave`";
        problems.push(Problem::new("shutdown.node", message));
    }
    if settings.impersonate_nodes == Some(ImpersonateNodes::On) {
        let message = "a bootstrapped node already has the node's identity: use `auto` or `off`";
        problems.push(Problem::new("impersonateNodes", message));
    }
    Some(given)
}

fn pods(settings: &Settings, problems: &mut Vec<Problem>) -> Pods {
    let given = settings.pods.events_per_second.unwrap_or_else(|| EVENTS_PER_SECOND.into());
    let events_per_second = u32::try_from(given).ok().filter(|number| (1..=10_000).contains(number));
    if events_per_second.is_none() {
        let message = format!("{given} is out of range: write a number from 1 to 10000");
        problems.push(Problem::new("pods.eventsPerSecond", message));
    }
    Pods {
        admission: settings.pods.admission.unwrap_or(Admission::Auto),
        daemon_sets: settings.pods.daemon_sets.unwrap_or(DaemonSets::Run),
        refused: settings.pods.refused.unwrap_or(RefusedPods::Fail),
        force_delete_after: settings
            .pods
            .force_delete_after
            .map(|GoDuration(time)| time)
            .filter(|time| !time.is_zero()),
        events_per_second: events_per_second.unwrap_or(EVENTS_PER_SECOND),
    }
}

fn timing(settings: &Settings, problems: &mut Vec<Problem>) -> Timing {
    Timing {
        ping_interval: positive("pingInterval", settings.ping_interval, PING_INTERVAL, problems),
        ping_timeout: positive("pingTimeout", settings.ping_timeout, PING_TIMEOUT, problems),
        status_interval: positive("statusInterval", settings.status_interval, STATUS_INTERVAL, problems),
        lease: lease::resolve(settings, problems),
    }
}

fn tls(settings: &Settings, problems: &mut Vec<Problem>) -> Tls {
    let serving = match (path(settings.tls.cert_file.as_ref()), path(settings.tls.key_file.as_ref())) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (Some(_), None) => {
            problems.push(Problem::new("tls.keyFile", "is missing: tls.certFile requires it"));
            None
        }
        (None, Some(_)) => {
            problems.push(Problem::new("tls.certFile", "is missing: tls.keyFile requires it"));
            None
        }
        (None, None) => None,
    };
    Tls {
        serving,
        client_ca: path(settings.tls.client_ca_file.as_ref()),
        request: settings.tls.request.unwrap_or(true),
    }
}

fn check_url(url: &str) -> Option<Problem> {
    let parsed = url.parse::<http::Uri>().ok();
    let good = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri
                .authority()
                .is_some_and(|authority| !authority.host().is_empty() && !authority.as_str().contains('@'))
    });
    // Do not repeat the value: it may contain a password.
    (!good).then(|| {
        Problem::new(
            "apiServer",
            "is not the URL of a server: write one such as https://10.0.0.1:6443, without user and password",
        )
    })
}

/// In the Go original an empty path means none.
pub(super) fn path(given: Option<&PathBuf>) -> Option<PathBuf> {
    given.filter(|path| !path.as_os_str().is_empty()).cloned()
}

pub(super) fn or(given: Option<GoDuration>, default: Duration) -> Duration {
    given.map_or(default, |duration| duration.0)
}

/// Zero means the default, as in node-cli.
fn or_default(given: Option<GoDuration>, default: Duration) -> Duration {
    given.map(|duration| duration.0).filter(|duration| !duration.is_zero()).unwrap_or(default)
}

pub(super) fn positive(
    key: &str,
    given: Option<GoDuration>,
    default: Duration,
    problems: &mut Vec<Problem>,
) -> Duration {
    let duration = or(given, default);
    if duration.is_zero() {
        problems.push(Problem::new(key, "must be more than 0: write a duration such as 10s"));
    }
    duration
}

#[cfg(test)]
mod tests;
