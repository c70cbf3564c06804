//! A pod without a cluster: what it refers to is not read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod, Volume};
use vk_provider::{
    explanation::UnreadObject,
    resolve::{CommandLine, ContainerInputs, Deferred, File, FileSet, Origin, Variable},
};

use crate::backend::ResolvedPod;

/// A pod for a translation without a cluster. What it refers to has the right names and origins, and no contents.
#[derive(Clone, Debug)]
pub struct OfflinePod {
    /// The pod.
    pub resolved: ResolvedPod,
    /// The ConfigMaps, Secrets and claims that it refers to.
    pub not_read: Vec<UnreadObject>,
}

impl OfflinePod {
    /// The pod, with nothing read.
    pub fn new(pod: Arc<Pod>) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let mut unread = Unread::default();
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let containers = all.map(|one| (one.name.clone(), inputs(one, &mut unread))).collect();
        let mut files = BTreeMap::new();
        for volume in spec.volumes.iter().flatten() {
            if let Some(set) = file_set(volume, &mut unread) {
                files.insert(volume.name.clone(), set);
            }
            if let Some(claim) = &volume.persistent_volume_claim {
                unread.add("PersistentVolumeClaim", &claim.claim_name);
            }
        }
        spec.image_pull_secrets.iter().flatten().for_each(|secret| unread.add("Secret", &secret.name));
        let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let not_read = unread.0.into_iter();
        let not_read = not_read.map(|(kind, name)| UnreadObject {
            kind: kind.to_owned(),
            namespace: namespace.clone(),
            name,
        });
        let not_read = not_read.collect();
        let resolved =
            ResolvedPod { pod, containers, files, claims: BTreeMap::new(), credentials: BTreeMap::new() };
        Self { resolved, not_read }
    }
}

/// Kinds and names of objects.
#[derive(Default)]
struct Unread(BTreeSet<(&'static str, String)>);

impl Unread {
    fn add(&mut self, kind: &'static str, name: &str) {
        if !name.is_empty() {
            self.0.insert((kind, name.to_owned()));
        }
    }
}

fn inputs(container: &Container, unread: &mut Unread) -> ContainerInputs {
    for source in container.env_from.iter().flatten() {
        if let Some(source) = &source.config_map_ref {
            unread.add("ConfigMap", &source.name);
        }
        if let Some(source) = &source.secret_ref {
            unread.add("Secret", &source.name);
        }
    }
    let mut env: Vec<Variable> = Vec::new();
    for variable in container.env.iter().flatten() {
        let resolved = if let Some(source) = &variable.value_from {
            from_source(&variable.name, source, unread)
        } else {
            let text = variable.value.as_deref().unwrap_or_default();
            let (value, origin, deferred) = expand(text, &env);
            Variable { name: variable.name.clone(), value, origin, deferred }
        };
        env.retain(|earlier| earlier.name != resolved.name);
        env.push(resolved);
    }
    let line = |words: &Option<Vec<String>>| {
        let mut line = CommandLine::default();
        for word in words.as_ref()? {
            let (word, origin, deferred) = expand(word, &env);
            line.words.push(word);
            line.origin = line.origin.max(origin);
            line.deferred = line.deferred.or(deferred);
        }
        Some(line)
    };
    let (command, args) = (line(&container.command), line(&container.args));
    ContainerInputs { env, command, args }
}

fn from_source(name: &str, source: &EnvVarSource, unread: &mut Unread) -> Variable {
    let mut variable = Variable::new(name, "", Origin::Field);
    if let Some(key) = &source.config_map_key_ref {
        unread.add("ConfigMap", &key.name);
        variable.origin = Origin::ConfigMap;
    } else if let Some(key) = &source.secret_key_ref {
        unread.add("Secret", &key.name);
        variable.origin = Origin::Secret;
    } else if source.file_key_ref.is_some() {
        variable.origin = Origin::File;
    } else if let Some(field) = &source.field_ref
        && matches!(
            field.field_path.as_str(),
            "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs"
        )
    {
        variable.deferred = Some(Deferred { field: field.field_path.clone(), whole: true });
    }
    variable
}

/// The text with `$(NAME)` replaced by earlier variables, as the kubelet does it: `$$` is a dollar, an unknown name stays.
fn expand(text: &str, env: &[Variable]) -> (String, Origin, Option<Deferred>) {
    let (mut out, mut origin, mut deferred) = (String::with_capacity(text.len()), Origin::Literal, None);
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(variable) = env.iter().find(|variable| variable.name == name) {
                out.push_str(&variable.value);
                origin = origin.max(variable.origin);
                let missing = variable.deferred.as_ref();
                deferred = deferred
                    .or_else(|| missing.map(|one| Deferred { field: one.field.clone(), whole: false }));
            } else {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    (out, origin, deferred)
}

/// The files that a volume certainly has, without contents.
fn file_set(volume: &Volume, unread: &mut Unread) -> Option<FileSet> {
    let mut files = BTreeMap::new();
    let mut add = |path: &str, mode: Option<i32>, origin: Origin| {
        let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
        files.insert(path.to_owned(), File::new("", mode, origin));
    };
    if let Some(source) = &volume.config_map {
        unread.add("ConfigMap", &source.name);
        for item in source.items.iter().flatten() {
            add(&item.path, item.mode.or(source.default_mode), Origin::ConfigMap);
        }
    } else if let Some(source) = &volume.secret {
        unread.add("Secret", source.secret_name.as_deref().unwrap_or_default());
        for item in source.items.iter().flatten() {
            add(&item.path, item.mode.or(source.default_mode), Origin::Secret);
        }
    } else if let Some(source) = &volume.downward_api {
        for item in source.items.iter().flatten() {
            add(&item.path, item.mode.or(source.default_mode), Origin::Field);
        }
    } else {
        let projected = volume.projected.as_ref()?;
        let mode = projected.default_mode;
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                unread.add("ConfigMap", &source.name);
                for item in source.items.iter().flatten() {
                    add(&item.path, item.mode.or(mode), Origin::ConfigMap);
                }
            }
            if let Some(source) = &source.secret {
                unread.add("Secret", &source.name);
                for item in source.items.iter().flatten() {
                    add(&item.path, item.mode.or(mode), Origin::Secret);
                }
            }
            for item in source.downward_api.iter().flat_map(|source| source.items.iter().flatten()) {
                add(&item.path, item.mode.or(mode), Origin::Field);
            }
            if let Some(token) = &source.service_account_token {
                add(&token.path, mode, Origin::Secret);
            }
        }
    }
    Some(FileSet { files, expires: None })
}
