//! Expands the list of nodes in the file to one entry per node, with unique names and ports.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use serde_json::{Map, Value};
use vk_provider::ConfigAlias;

use super::{
    Listen, NodeName, NodeSettings, Os, Problem, ProviderConfig, Settings, TaintEffect, TaintSettings,
    ValidationContext,
    effective::Node,
    kubernetes_names::{check_key, check_subdomain, check_value},
    ports::{NodeDraft, assign},
    validation::path,
};
use crate::registry::unknown_provider_message;

/// Defaults of the Go original.
const NODE_NAME: &str = "virtual-kubelet";
const CLUSTER_DOMAIN: &str = "cluster.local";
const TAINT_KEY: &str = "virtual-kubelet.io/provider";
const PORT: u16 = 10_250;
/// The provider whose pods run in another cluster, and tensile-kube's name for it.
const CLUSTER: (&str, &str) = ("cluster", "k8s");
/// Nodes on one address need a port each.
const COUNT_MAX: i64 = 65_535;

/// All nodes of the configuration.
pub(super) fn expand(
    settings: &Settings,
    admin: Option<Listen>,
    host: &ValidationContext<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Node> {
    check_common(settings, host, problems);
    let inherited = read_config("providerConfig", settings.provider_config.as_ref(), host, problems);
    let single = [NodeSettings::default()];
    let entries = if settings.nodes.is_empty() { single.as_slice() } else { &settings.nodes };
    let mut drafts = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = if settings.nodes.is_empty() { String::new() } else { format!("nodes[{index}].") };
        let node = template(settings, entry, &key, &inherited, host, problems);
        for (name, port) in names(settings, entry, &key, problems) {
            drafts.push(NodeDraft { node: Node { name, ..node.clone() }, port, key: key.clone() });
        }
    }
    unique_names(&drafts, problems);
    check_lower(settings, &drafts, problems);
    assign(drafts, settings.port.map_or(PORT, |port| port.0), admin, problems)
}

fn check_common(settings: &Settings, host: &ValidationContext<'_>, problems: &mut Vec<Problem>) {
    if let Some(provider) = &settings.provider
        && !host.providers.contains(&canonical_provider(provider, host))
    {
        problems.push(Problem::new("provider", unknown_provider_message(provider, host.providers)));
    }
    if let Some(domain) = &settings.cluster_domain {
        check_domain("clusterDomain", domain, problems);
    }
    if let Some(hostname) = &settings.hostname {
        check_domain("hostname", hostname, problems);
    }
    check_maps("", &settings.labels, &settings.annotations, problems);
    check_taints("", settings.taint.as_ref(), &settings.taints, problems);
}

/// The common part of all nodes of an entry.
fn template(
    settings: &Settings,
    entry: &NodeSettings,
    key: &str,
    inherited: &vk_provider::Config,
    host: &ValidationContext<'_>,
    problems: &mut Vec<Problem>,
) -> Node {
    if let Some(domain) = &entry.cluster_domain {
        check_domain(&format!("{key}clusterDomain"), domain, problems);
    }
    if let Some(hostname) = &entry.hostname {
        check_domain(&format!("{key}hostname"), hostname, problems);
    }
    check_maps(key, &entry.labels, &entry.annotations, problems);
    check_taints(key, entry.taint.as_ref(), &entry.taints, problems);
    if let Some(provider) = &entry.provider
        && !host.providers.contains(&canonical_provider(provider, host))
    {
        problems
            .push(Problem::new(format!("{key}provider"), unknown_provider_message(provider, host.providers)));
    }
    let own = read_config(&format!("{key}providerConfig"), entry.provider_config.as_ref(), host, problems);
    let common = settings.provider.as_deref().map(|provider| canonical_provider(provider, host));
    let provider = entry
        .provider
        .as_deref()
        .map(|provider| canonical_provider(provider, host))
        .or(common)
        .unwrap_or_default();
    if entry.provider.is_none() && settings.provider.is_none() {
        let known = if host.providers.is_empty() { "none".to_owned() } else { host.providers.join(", ") };
        let message = format!("is not given: write one, or use --provider or VK_PROVIDER; known: {known}");
        problems.push(Problem::new(format!("{key}provider"), message).consequential());
    }
    let taints = taints(settings, entry, provider);
    check_repeated(key, &taints, problems);
    // A configuration for one provider does not apply to another.
    let same_provider = common.is_none_or(|common| common == provider);
    let provider_config = match own {
        vk_provider::Config::Default if same_provider => inherited.clone(),
        own => own,
    };
    let provider_config = if provider == CLUSTER.0 {
        provider_config.with(lower_cluster_options(settings))
    } else {
        provider_config
    };
    let (keys, provider_variables) = provider_variables(provider, host, problems);
    let provider_config = provider_config.with(keys);
    let merged = |common: &BTreeMap<String, String>, own: &BTreeMap<String, String>| {
        common.iter().chain(own).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    Node {
        name: String::new(),
        taints,
        provider: provider.to_owned(),
        provider_config,
        provider_variables,
        os: entry.os.or(settings.os).unwrap_or(Os::Linux),
        cluster_domain: entry
            .cluster_domain
            .as_ref()
            .or(settings.cluster_domain.as_ref())
            .map_or_else(|| CLUSTER_DOMAIN.to_owned(), Clone::clone),
        address: entry.address.or(settings.address),
        internal_ip: entry.internal_ip.or(settings.internal_ip),
        external_ip: entry.external_ip.or(settings.external_ip),
        hostname: entry.hostname.clone().or_else(|| settings.hostname.clone()),
        port: 0,
        labels: merged(&settings.labels, &entry.labels),
        annotations: merged(&settings.annotations, &entry.annotations),
    }
}

/// Maps tensile-kube's name of a provider to ours.
fn canonical_provider<'a>(provider: &'a str, host: &ValidationContext<'_>) -> &'a str {
    let (name, other) = CLUSTER;
    if provider == other && !host.providers.contains(&other) { name } else { provider }
}

/// Top-level options of the provider `cluster`, for tensile-kube's flags.
/// The keys of a provider's configuration that the environment sets, and the variables.
fn provider_variables(
    provider: &str,
    host: &ValidationContext<'_>,
    problems: &mut Vec<Problem>,
) -> (Map<String, Value>, Vec<ConfigAlias>) {
    let mut section = Map::new();
    let mut used: Vec<ConfigAlias> = Vec::new();
    for (alias, text) in (host.provider_variables)(provider) {
        if used.iter().any(|other| other.key == alias.key) {
            continue;
        }
        match alias.parse(&text) {
            Ok(Some(value)) => {
                alias.set(&mut section, value);
                used.push(alias);
            }
            Ok(None) => {}
            Err(why) => {
                let problem = Problem::new(format!("providerConfig.{}", alias.key), why)
                    .from_source(format!("environment {}", alias.name));
                // Each node with this provider has it.
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
    }
    (section, used)
}

fn lower_cluster_options(settings: &Settings) -> Map<String, Value> {
    let kubeconfig = path(settings.client_kubeconfig.as_ref());
    let kubeconfig = kubeconfig.map(|path| ("kubeconfig", path.to_string_lossy().into_owned().into()));
    let labels = settings.ignore_labels.clone().map(|labels| ("ignoreLabels", labels.into()));
    kubeconfig.into_iter().chain(labels).map(|(key, value)| (key.to_owned(), value)).collect()
}

fn check_lower(settings: &Settings, drafts: &[NodeDraft], problems: &mut Vec<Problem>) {
    let other = drafts.iter().map(|draft| draft.node.provider.as_str()).find(|name| !name.is_empty());
    let Some(other) = other.filter(|_| drafts.iter().all(|draft| draft.node.provider != CLUSTER.0)) else {
        return;
    };
    for (key, given) in [
        ("clientKubeconfig", path(settings.client_kubeconfig.as_ref()).is_some()),
        ("ignoreLabels", settings.ignore_labels.is_some()),
    ] {
        if given {
            let message =
                format!("is for the provider `{}`, but the nodes have `{other}`: remove it", CLUSTER.0);
            problems.push(Problem::new(key, message));
        }
    }
}

/// The node names of an entry, with their configured ports.
fn names(
    settings: &Settings,
    entry: &NodeSettings,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(String, Option<u16>)> {
    let before = problems.len();
    let mut wrong =
        |field: &str, message: String| problems.push(Problem::new(format!("{key}{field}"), message));
    let common = settings.node_name.as_ref().map_or(NODE_NAME, NodeName::as_str);
    let Some(count) = entry.count else {
        for (given, field) in [
            (entry.name_pattern.is_some(), "namePattern"),
            (entry.start_index.is_some(), "startIndex"),
            (entry.port_base.is_some(), "portBase"),
        ] {
            if given {
                wrong(field, "has no effect without count: write count, or name and port".into());
            }
        }
        let name = entry.name.as_ref().map_or(common, NodeName::as_str);
        return vec![(name.to_owned(), entry.port.map(|port| port.0))];
    };
    if entry.name.is_some() {
        wrong("name", "cannot be combined with count: write namePattern, such as `vk-{}`".into());
    }
    if !(1..=COUNT_MAX).contains(&count) {
        wrong("count", format!("{count} is not a number of nodes: write 1 to {COUNT_MAX}"));
    }
    let start = entry.start_index.unwrap_or(0);
    if start < 0 {
        wrong("startIndex", format!("{start} is negative: write 0 or more"));
    }
    let pattern = entry.name_pattern.clone().unwrap_or_else(|| format!("{common}-{{}}"));
    if count > 1 && !pattern.contains("{}") {
        wrong(
            "namePattern",
            format!("`{pattern}` gives {count} nodes the same name: write `{{}}` for the number"),
        );
    }
    if count > 1 && entry.port.is_some() {
        wrong("port", format!("gives {count} nodes one port: write portBase"));
    }
    if problems.len() > before {
        return Vec::new();
    }
    let mut names = Vec::new();
    for offset in 0..count {
        let name = pattern.replace("{}", &start.saturating_add(offset).to_string());
        if let Err(message) = name.parse::<NodeName>() {
            problems.push(Problem::new(format!("{key}namePattern"), message));
            return Vec::new();
        }
        let port = match (entry.port_base, entry.port) {
            (Some(base), _) => u16::try_from(i64::from(base.0) + offset).ok().or_else(|| {
                let message = format!("{} is too high: node `{name}` would get a port above 65535", base.0);
                problems.push(Problem::new(format!("{key}portBase"), message));
                None
            }),
            (None, port) => port.map(|port| port.0),
        };
        if problems.len() > before {
            return Vec::new();
        }
        names.push((name, port));
    }
    names
}

fn unique_names(drafts: &[NodeDraft], problems: &mut Vec<Problem>) {
    let mut seen = BTreeMap::new();
    for draft in drafts {
        if let Some(first) = seen.insert(&draft.node.name, &draft.key) {
            let message =
                format!("node name `{}` is already used by {}", draft.node.name, first.trim_end_matches('.'));
            problems.push(Problem::new(format!("{}name", draft.key), message).consequential());
        }
    }
}

/// The default taint unless it is disabled, and the additional taints.
fn taints(settings: &Settings, entry: &NodeSettings, provider: &str) -> Vec<Taint> {
    let build = |own: &TaintSettings, common: &TaintSettings| Taint {
        key: own.key.as_ref().or(common.key.as_ref()).map_or_else(|| TAINT_KEY.to_owned(), Clone::clone),
        value: Some(
            own.value.as_ref().or(common.value.as_ref()).map_or_else(|| provider.to_owned(), Clone::clone),
        ),
        effect: own.effect.or(common.effect).unwrap_or(TaintEffect::NoSchedule).to_string(),
        time_added: None,
    };
    let none = TaintSettings::default();
    let off = entry.disable_taint.or(settings.disable_taint).unwrap_or(false);
    let usual = (!off)
        .then(|| build(entry.taint.as_ref().unwrap_or(&none), settings.taint.as_ref().unwrap_or(&none)));
    usual
        .into_iter()
        .chain(settings.taints.iter().chain(&entry.taints).map(|taint| build(taint, &none)))
        .collect()
}

fn read_config(
    key: &str,
    given: Option<&ProviderConfig>,
    host: &ValidationContext<'_>,
    problems: &mut Vec<Problem>,
) -> vk_provider::Config {
    match given {
        None => vk_provider::Config::Default,
        Some(ProviderConfig::Inline(section)) => vk_provider::Config::Inline(section.clone().into()),
        // In the Go original an empty path means none.
        Some(ProviderConfig::Path(path)) if path.as_os_str().is_empty() => vk_provider::Config::Default,
        Some(ProviderConfig::Path(path)) => match (host.read)(path) {
            Ok(text) => vk_provider::Config::File { path: path.clone(), text },
            Err(error) => {
                problems.push(Problem::new(key, format!("cannot read {}: {error}", path.display())));
                vk_provider::Config::Default
            }
        },
    }
}

fn check_domain(key: &str, domain: &str, problems: &mut Vec<Problem>) {
    if let Err(wrong) = check_subdomain(domain) {
        problems.push(Problem::new(key, format!("`{domain}` {wrong}")));
    }
}

fn check_maps(
    key: &str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
) {
    let labels = labels
        .iter()
        .map(|(name, value)| ("labels", name, check_key(name).and_then(|()| check_value(value))));
    // The API server validates annotation keys in lower case.
    let annotations = annotations.keys().map(|name| ("annotations", name, check_key(&name.to_lowercase())));
    for (map, name, result) in labels.chain(annotations) {
        if let Err(wrong) = result {
            problems.push(Problem::new(format!("{key}{map}.{name}"), wrong));
        }
    }
}

/// The API server rejects a node with duplicate taints.
fn check_repeated(key: &str, taints: &[Taint], problems: &mut Vec<Problem>) {
    for (index, taint) in taints.iter().enumerate() {
        if taints[..index].iter().any(|other| (&other.key, &other.effect) == (&taint.key, &taint.effect)) {
            let message = format!("`{}` with effect {} is a duplicate: remove one", taint.key, taint.effect);
            problems.push(Problem::new(format!("{key}taints"), message));
        }
    }
}

fn check_taints(
    key: &str,
    usual: Option<&TaintSettings>,
    further: &[TaintSettings],
    problems: &mut Vec<Problem>,
) {
    let mut check = |at: String, taint: &TaintSettings| {
        let parts = [
            ("key", taint.key.as_ref().map(|key| check_key(key))),
            ("value", taint.value.as_ref().map(|value| check_value(value))),
        ];
        for (part, result) in parts {
            if let Some(Err(wrong)) = result {
                problems.push(Problem::new(format!("{at}.{part}"), wrong));
            }
        }
    };
    if let Some(taint) = usual {
        check(format!("{key}taint"), taint);
    }
    for (index, taint) in further.iter().enumerate() {
        check(format!("{key}taints[{index}]"), taint);
    }
}
