//! The files of a volume: configMap, secret, downwardAPI and projected.
//!
//! What a kubelet does about them is matched: which keys become files, with which modes and owners, what may be missing,
//! that of two files with one path the later one stays, and the words of every error. A path that could lead out of the
//! volume is refused here already, so no provider has to look at it.

mod payload;
mod trust;

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
    resolve::{File, FileSet, NodeFacts, Reference, ReferenceKind},
};

use self::payload::{Payload, file};
use super::{
    amounts, fields,
    objects::{Needs, Objects, Remark, TokenKey, namespace, remark, unresolved},
};

/// The mode that the API server writes where nothing was said.
const DEFAULT_MODE: i32 = 0o644;

/// What has to be read before [`volume`] can answer.
pub(crate) fn needs(pod: &Pod, name: &str) -> Result<Needs> {
    let mut needs = Needs::default();
    match Source::of(pod, name)? {
        Source::ConfigMap(map) => needs.config_map(map.name, map.optional),
        Source::Secret(secret) => needs.secret(secret.name, secret.optional),
        Source::Downward { .. } => {}
        Source::Projected(projected) => {
            for source in projected.sources.iter().flatten() {
                if let Some(secret) = &source.secret {
                    needs.secret(&secret.name, secret.optional == Some(true));
                } else if let Some(map) = &source.config_map {
                    needs.config_map(&map.name, map.optional == Some(true));
                } else if let Some(token) = &source.service_account_token {
                    needs.tokens.insert(token_key(token));
                } else if let Some(bundle) = &source.cluster_trust_bundle {
                    needs.trust_bundle(trust::key(bundle)?, bundle.optional == Some(true));
                } else if source.pod_certificate.is_some() {
                    return Err(no_certificates(name));
                }
            }
        }
    }
    Ok(needs)
}

/// The files of a volume at this moment. The error is `Unresolved` where something mandatory is missing, or where an
/// object holds what cannot be a file; `Invalid` where the pod asks for what no kubelet gives.
pub(crate) fn volume(
    pod: &Pod,
    name: &str,
    node: &NodeFacts,
    objects: &Objects,
) -> Result<(FileSet, Vec<Remark>)> {
    let mut remarks = Vec::new();
    let mut payload = Payload::default();
    let mut maker = Maker { pod, node, objects, remarks: &mut remarks };
    match Source::of(pod, name)? {
        Source::ConfigMap(map) => payload.extend(maker.config_map(&map)?),
        Source::Secret(secret) => payload.extend(maker.secret(&secret)?),
        Source::Downward { items, mode } => payload.extend(maker.downward(items, mode)?),
        Source::Projected(projected) => payload.extend(maker.projected(name, projected)?),
    }
    Ok((payload.finish()?, remarks))
}

/// What a volume is made of.
enum Source<'a> {
    ConfigMap(Keys<'a>),
    Secret(Keys<'a>),
    Downward { items: &'a [DownwardAPIVolumeFile], mode: i32 },
    Projected(&'a ProjectedVolumeSource),
}

/// Keys of a ConfigMap or a Secret.
struct Keys<'a> {
    name: &'a str,
    items: &'a [KeyToPath],
    mode: i32,
    optional: bool,
}

impl<'a> Source<'a> {
    fn of(pod: &'a Pod, name: &str) -> Result<Self> {
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let volume: &Volume = volumes
            .find(|volume| volume.name == name)
            .ok_or_else(|| Error::invalid(format!("the pod has no volume {name:?}")))?;
        if let Some(map) = &volume.config_map {
            Ok(Self::ConfigMap(Keys {
                name: &map.name,
                items: map.items.as_deref().unwrap_or_default(),
                mode: map.default_mode.unwrap_or(DEFAULT_MODE),
                optional: map.optional == Some(true),
            }))
        } else if let Some(secret) = &volume.secret {
            Ok(Self::Secret(Keys {
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
                "volume {name:?} is not made of objects of the API server: only configMap, secret, downwardAPI and \
                 projected are"
            )))
        }
    }
}

/// Makes files.
struct Maker<'a> {
    pod: &'a Pod,
    node: &'a NodeFacts,
    objects: &'a Objects,
    remarks: &'a mut Vec<Remark>,
}

impl Maker<'_> {
    fn config_map(&mut self, keys: &Keys<'_>) -> Result<Payload> {
        let reference = Reference::new(ReferenceKind::ConfigMap, namespace(self.pod), keys.name);
        let Some(map) = self.objects.config_map(self.pod, keys.name, keys.optional, self.remarks)? else {
            return Ok(Payload::default());
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

    fn secret(&mut self, keys: &Keys<'_>) -> Result<Payload> {
        let reference = Reference::new(ReferenceKind::Secret, namespace(self.pod), keys.name);
        let Some(secret) = self.objects.secret(self.pod, keys.name, keys.optional, self.remarks)? else {
            return Ok(Payload::default());
        };
        let Secret { data, .. } = secret;
        let all = data.iter().flatten().map(|(key, ByteString(bytes))| (key, bytes.as_slice()));
        let one = |key: &str| data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        self.keys(keys, &reference, all, one, "references non-existent secret key")
    }

    /// All keys, or those that are listed where some are.
    fn keys<'k>(
        &mut self,
        keys: &Keys<'_>,
        reference: &Reference,
        all: impl Iterator<Item = (&'k String, &'k [u8])>,
        one: impl Fn(&str) -> Option<&'k [u8]>,
        missing: &str,
    ) -> Result<Payload> {
        let mut payload = Payload::default();
        if keys.items.is_empty() {
            for (key, content) in all {
                // The object decides here what the path is, so it can be put right there.
                payload
                    .add(key, file(content, keys.mode))
                    .map_err(|why| unresolved(reference.clone().key(key), why))?;
            }
            return Ok(payload);
        }
        for item in keys.items {
            let Some(content) = one(&item.key) else {
                let reference = reference.clone().key(&item.key);
                if keys.optional {
                    remark(self.remarks, Remark::Missing(reference));
                    continue;
                }
                return Err(unresolved(reference, format!("{missing}: {}", item.key)));
            };
            let file = file(content, item.mode.unwrap_or(keys.mode));
            payload.add(&item.path, file).map_err(Error::invalid)?;
        }
        Ok(payload)
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<Payload> {
        let mut payload = Payload::default();
        let mut errors = Vec::new();
        for item in items {
            let value = if let Some(field) = &item.field_ref {
                fields::file(field, self.pod)
            } else if let Some(field) = &item.resource_field_ref {
                amounts::file(field, self.pod, self.node)
            } else {
                Ok(String::new())
            };
            let mode = item.mode.unwrap_or(mode);
            let added =
                value.and_then(|value| payload.add(&item.path, file(value, mode)).map_err(Error::invalid));
            errors.extend(added.err());
        }
        together(errors)?;
        Ok(payload)
    }

    /// Every source is tried, so that people hear of all that is missing at once.
    fn projected(&mut self, name: &str, projected: &ProjectedVolumeSource) -> Result<Payload> {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::default();
        let mut errors = Vec::new();
        for source in projected.sources.iter().flatten() {
            match self.source(name, source, mode) {
                Ok(more) => payload.extend(more),
                Err(error) => errors.push(error),
            }
        }
        together(errors)?;
        Ok(payload)
    }

    fn source(&mut self, name: &str, source: &VolumeProjection, mode: i32) -> Result<Payload> {
        if let Some(secret) = &source.secret {
            let items = secret.items.as_deref().unwrap_or_default();
            self.secret(&Keys { name: &secret.name, items, mode, optional: secret.optional == Some(true) })
        } else if let Some(map) = &source.config_map {
            let items = map.items.as_deref().unwrap_or_default();
            self.config_map(&Keys { name: &map.name, items, mode, optional: map.optional == Some(true) })
        } else if let Some(downward) = &source.downward_api {
            self.downward(downward.items.as_deref().unwrap_or_default(), mode)
        } else if let Some(token) = &source.service_account_token {
            let key = token_key(token);
            let found = self.objects.tokens.get(&key);
            let found = found.ok_or_else(|| Error::internal("a token of the pod was not asked for"))?;
            self.owned(&token.path, found.token.expose_secret().as_bytes(), mode)
        } else if let Some(bundle) = &source.cluster_trust_bundle {
            let anchors = trust::anchors(bundle, self.objects, self.remarks)?;
            self.owned(&bundle.path, &anchors, mode)
        } else if source.pod_certificate.is_some() {
            Err(no_certificates(name))
        } else {
            Ok(Payload::default())
        }
    }

    /// A file for the pod's user alone where that can be told, and otherwise for everybody whom the mode lets in. With a
    /// group (`fsGroup`) who writes the file adds the group's right to read it.
    fn owned(&self, path: &str, content: &[u8], mode: i32) -> Result<Payload> {
        let owner = only_user(self.pod);
        let group = self.pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
        let mode = if owner.is_some() || group.is_some() { 0o600 } else { mode };
        let mut payload = Payload::default();
        payload.add(path, File { owner, ..file(content, mode) }).map_err(Error::invalid)?;
        Ok(payload)
    }
}

fn token_key(token: &ServiceAccountTokenProjection) -> TokenKey {
    let audience = token.audience.clone().filter(|audience| !audience.is_empty());
    TokenKey { audience, expiration_seconds: token.expiration_seconds }
}

fn no_certificates(volume: &str) -> Error {
    Error::unsupported(format!("volume {volume:?}: certificates for pods (podCertificate) are not supported"))
}

/// The one user that all containers of the pod run as; `None` where one of them does not say or they differ.
fn only_user(pod: &Pod) -> Option<u32> {
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

/// Several errors as one, in the kubelet's manner. What can never work decides what becomes of it.
fn together(mut errors: Vec<Error>) -> Result<()> {
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
    let hopeless =
        errors.iter().find(|error| error.kind().reaction() == vk_provider::error::Reaction::Refuse);
    let kind = hopeless.unwrap_or(&errors[0]).kind().clone();
    Err(Error::new(kind, message))
}

#[cfg(test)]
mod tests;
