//! The files of a volume: configMap, secret, downwardAPI and projected.
//!
//! The behaviour is the kubelet's: which keys become files, their modes and owners, what may be missing, that the later of
//! two files with one path wins, and the error messages. Paths that lead out of the volume are rejected here, so providers
//! need not check them.

mod file_set_builder;
mod trust_anchors;

use k8s_openapi::{
    ByteString,
    api::core::v1::{
        ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, PodSecurityContext,
        ProjectedVolumeSource, Secret, SecurityContext, ServiceAccountTokenProjection, Volume,
        VolumeProjection,
    },
};
use secrecy::ExposeSecret as _;
use vk_provider::{
    Error, Result,
    resolve::{File, FileSet, NodeFacts, Origin, Reference, ReferenceKind},
};

use self::file_set_builder::{FileSetBuilder, file};
use super::{
    fetched_objects::{
        FetchedObjects, RequiredObjects, ResolveWarning, TokenKey, add_warning, namespace, unresolved,
    },
    field_ref, resource_field_ref,
};

/// The API server's default mode.
const DEFAULT_MODE: i32 = 0o644;

/// The objects that [`volume`] needs.
pub(crate) fn required_objects(pod: &Pod, name: &str) -> Result<RequiredObjects> {
    let mut required = RequiredObjects::default();
    match VolumeSource::of(pod, name)? {
        VolumeSource::ConfigMap(map) => required.config_map(map.name, map.optional),
        VolumeSource::Secret(secret) => required.secret(secret.name, secret.optional),
        VolumeSource::Downward { .. } => {}
        VolumeSource::Projected(projected) => {
            for source in projected.sources.iter().flatten() {
                if let Some(secret) = &source.secret {
                    required.secret(&secret.name, secret.optional == Some(true));
                } else if let Some(map) = &source.config_map {
                    required.config_map(&map.name, map.optional == Some(true));
                } else if let Some(token) = &source.service_account_token {
                    required.tokens.insert(token_key(token));
                } else if let Some(bundle) = &source.cluster_trust_bundle {
                    required.trust_bundle(trust_anchors::key(bundle)?, bundle.optional == Some(true));
                } else if source.pod_certificate.is_some() {
                    return Err(unsupported_certificate(name));
                }
            }
        }
    }
    Ok(required)
}

/// The current files of a volume. The error is `Unresolved` if something mandatory is missing or an object has a key that
/// cannot be a file, and `Invalid` if a kubelet would reject the spec too.
pub(crate) fn volume(
    pod: &Pod,
    name: &str,
    node: &NodeFacts,
    objects: &FetchedObjects,
) -> Result<(FileSet, Vec<ResolveWarning>)> {
    let mut warnings = Vec::new();
    let mut files = FileSetBuilder::default();
    let mut resolver = VolumeResolver { pod, node, objects, warnings: &mut warnings };
    match VolumeSource::of(pod, name)? {
        VolumeSource::ConfigMap(map) => files.extend(resolver.config_map(&map)?),
        VolumeSource::Secret(secret) => files.extend(resolver.secret(&secret)?),
        VolumeSource::Downward { items, mode } => files.extend(resolver.downward(items, mode)?),
        VolumeSource::Projected(projected) => files.extend(resolver.projected(name, projected)?),
    }
    let expires = objects.tokens.values().map(|token| token.expires).min();
    Ok((FileSet { expires, ..files.finish()? }, warnings))
}

/// The source of a volume's files.
enum VolumeSource<'a> {
    ConfigMap(KeySelection<'a>),
    Secret(KeySelection<'a>),
    Downward { items: &'a [DownwardAPIVolumeFile], mode: i32 },
    Projected(&'a ProjectedVolumeSource),
}

/// Selected keys of a ConfigMap or Secret.
struct KeySelection<'a> {
    name: &'a str,
    items: &'a [KeyToPath],
    mode: i32,
    optional: bool,
}

impl<'a> VolumeSource<'a> {
    fn of(pod: &'a Pod, name: &str) -> Result<Self> {
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volume: &Volume = volumes
            .find(|volume| volume.name == name)
            .ok_or_else(|| Error::invalid(format!("the pod has no volume {name:?}")))?;
        if let Some(map) = &volume.config_map {
            Ok(Self::ConfigMap(KeySelection {
                name: &map.name,
                items: map.items.as_deref().unwrap_or_default(),
                mode: map.default_mode.unwrap_or(DEFAULT_MODE),
                optional: map.optional == Some(true),
            }))
        } else if let Some(secret) = &volume.secret {
            Ok(Self::Secret(KeySelection {
                name: secret.secret_name.as_deref().unwrap_or_default(),
                items: secret.items.as_deref().unwrap_or_default(),
                mode: secret.default_mode.unwrap_or(DEFAULT_MODE),
                optional: secret.optional == Some(true),
            }))
        } else if let Some(downward) = &volume.downward_api {
            let items = downward.items.as_deref().unwrap_or_default();
            Ok(Self::Downward { items, mode: downward.default_mode.unwrap_or(DEFAULT_MODE) })
        } else if let Some(projected) = &volume.projected {
            Ok(Self::Projected(projected))
        } else {
            Err(Error::unsupported(format!(
                "volume {name:?} has no files from the API server; only configMap, secret, downwardAPI and projected \
                 volumes have"
            )))
        }
    }
}

/// Builds the files of a volume.
struct VolumeResolver<'a> {
    pod: &'a Pod,
    node: &'a NodeFacts,
    objects: &'a FetchedObjects,
    warnings: &'a mut Vec<ResolveWarning>,
}

impl VolumeResolver<'_> {
    fn config_map(&mut self, keys: &KeySelection<'_>) -> Result<FileSetBuilder> {
        let reference = Reference::new(ReferenceKind::ConfigMap, namespace(self.pod), keys.name);
        let Some(map) = self.objects.config_map(self.pod, keys.name, keys.optional, self.warnings)? else {
            return Ok(FileSetBuilder::default());
        };
        let ConfigMap { data, binary_data, .. } = map;
        let all = data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
        let all = all.chain(binary_data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice())));
        let one = |key: &str| {
            let text = data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
            text.or_else(|| binary_data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice()))
        };
        let missing = "configmap references non-existent config key";
        self.keys(keys, &reference, all, one, missing)
    }

    fn secret(&mut self, keys: &KeySelection<'_>) -> Result<FileSetBuilder> {
        let reference = Reference::new(ReferenceKind::Secret, namespace(self.pod), keys.name);
        let Some(secret) = self.objects.secret(self.pod, keys.name, keys.optional, self.warnings)? else {
            return Ok(FileSetBuilder::default());
        };
        let Secret { data, .. } = secret;
        let all = data.iter().flatten().map(|(key, ByteString(bytes))| (key, bytes.as_slice()));
        let one = |key: &str| data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        self.keys(keys, &reference, all, one, "references non-existent secret key")
    }

    /// Adds all keys, or only the listed items if there are any.
    fn keys<'k>(
        &mut self,
        keys: &KeySelection<'_>,
        reference: &Reference,
        all: impl Iterator<Item = (&'k String, &'k [u8])>,
        one: impl Fn(&str) -> Option<&'k [u8]>,
        missing: &str,
    ) -> Result<FileSetBuilder> {
        let origin = if reference.kind == ReferenceKind::Secret { Origin::Secret } else { Origin::ConfigMap };
        let mut files = FileSetBuilder::default();
        if keys.items.is_empty() {
            for (key, content) in all {
                // The path comes from the object, so the object can be corrected.
                files
                    .add(key, file(content, keys.mode, origin))
                    .map_err(|why| unresolved(reference.clone().key(key), why))?;
            }
            return Ok(files);
        }
        for item in keys.items {
            let Some(content) = one(&item.key) else {
                let reference = reference.clone().key(&item.key);
                if keys.optional {
                    add_warning(self.warnings, ResolveWarning::MissingOptional(reference));
                    continue;
                }
                return Err(unresolved(reference, format!("{missing}: {}", item.key)));
            };
            let file = file(content, item.mode.unwrap_or(keys.mode), origin);
            files.add(&item.path, file).map_err(Error::invalid)?;
        }
        Ok(files)
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<FileSetBuilder> {
        let mut files = FileSetBuilder::default();
        let mut errors = Vec::new();
        for item in items {
            let value = if let Some(field) = &item.field_ref {
                field_ref::file(field, self.pod)
            } else if let Some(field) = &item.resource_field_ref {
                resource_field_ref::file(field, self.pod, self.node)
            } else {
                Ok(String::new())
            };
            let mode = item.mode.unwrap_or(mode);
            let added = value.and_then(|value| {
                files.add(&item.path, file(value, mode, Origin::Field)).map_err(Error::invalid)
            });
            errors.extend(added.err());
        }
        combine(errors)?;
        Ok(files)
    }

    /// Tries every source, so that all errors are reported at once.
    fn projected(&mut self, name: &str, projected: &ProjectedVolumeSource) -> Result<FileSetBuilder> {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let mut files = FileSetBuilder::default();
        let mut errors = Vec::new();
        for source in projected.sources.iter().flatten() {
            match self.source(name, source, mode) {
                Ok(more) => files.extend(more),
                Err(error) => errors.push(error),
            }
        }
        combine(errors)?;
        Ok(files)
    }

    fn source(&mut self, name: &str, source: &VolumeProjection, mode: i32) -> Result<FileSetBuilder> {
        if let Some(secret) = &source.secret {
            let items = secret.items.as_deref().unwrap_or_default();
            self.secret(&KeySelection {
                name: &secret.name,
                items,
                mode,
                optional: secret.optional == Some(true),
            })
        } else if let Some(map) = &source.config_map {
            let items = map.items.as_deref().unwrap_or_default();
            self.config_map(&KeySelection {
                name: &map.name,
                items,
                mode,
                optional: map.optional == Some(true),
            })
        } else if let Some(downward) = &source.downward_api {
            self.downward(downward.items.as_deref().unwrap_or_default(), mode)
        } else if let Some(token) = &source.service_account_token {
            let key = token_key(token);
            let found = self.objects.tokens.get(&key);
            let found = found.ok_or_else(|| Error::internal("a token of the pod was not fetched"))?;
            self.owned_file(&token.path, file(found.token.expose_secret(), mode, Origin::Secret))
        } else if let Some(bundle) = &source.cluster_trust_bundle {
            let anchors = trust_anchors::anchors(bundle, self.objects, self.warnings)?;
            self.owned_file(&bundle.path, file(anchors, mode, Origin::ConfigMap))
        } else if source.pod_certificate.is_some() {
            Err(unsupported_certificate(name))
        } else {
            Ok(FileSetBuilder::default())
        }
    }

    /// A file for the pod's user only if all containers run as the same user, otherwise as given. With `fsGroup`, the
    /// provider adds read permission for the group.
    fn owned_file(&self, path: &str, file: File) -> Result<FileSetBuilder> {
        let owner = common_user(self.pod);
        let group = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
        let mode = if owner.is_some() || group.is_some() { 0o600 } else { file.mode };
        let mut files = FileSetBuilder::default();
        files.add(path, File { owner, mode, ..file }).map_err(Error::invalid)?;
        Ok(files)
    }
}

fn token_key(token: &ServiceAccountTokenProjection) -> TokenKey {
    let audience = token.audience.clone().filter(|audience| !audience.is_empty());
    TokenKey { audience, expiration_seconds: token.expiration_seconds }
}

fn unsupported_certificate(volume: &str) -> Error {
    Error::unsupported(format!("volume {volume:?}: podCertificate sources are not supported"))
}

/// The user that all containers of the pod run as; `None` if it is unset for a container or they differ.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context: &PodSecurityContext| context.run_as_user);
    let user = |context: Option<&SecurityContext>| context.and_then(|context| context.run_as_user).or(of_pod);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = containers.map(|container: &Container| user(container.security_context.as_ref()));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mut users = containers.chain(ephemeral.map(|container| user(container.security_context.as_ref())));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)?.try_into().ok()
}

/// Combines errors in the kubelet's format. A permanent error determines the kind.
fn combine(mut errors: Vec<Error>) -> Result<()> {
    let mut messages: Vec<&str> = Vec::new();
    for error in &errors {
        if !messages.contains(&error.message()) {
            messages.push(error.message());
        }
    }
    let message = match messages[..] {
        [] => return Ok(()),
        [_] => return Err(errors.swap_remove(0)),
        _ => format!("[{}]", messages.join(", ")),
    };
    let permanent =
        errors.iter().find(|error| error.kind().reaction() == vk_provider::error::Reaction::Refuse);
    let kind = permanent.unwrap_or(&errors[0]).kind().clone();
    Err(Error::new(kind, message))
}

#[cfg(test)]
mod tests;
