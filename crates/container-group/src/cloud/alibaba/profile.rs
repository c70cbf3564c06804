//! Profiles: the file of the vendor's command line, and the older one of its SDKs.

use std::{
    collections::HashMap,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::{
    credential_chain::{Environment, Lookup},
    role_token::{OidcRole, Role},
};
use crate::cloud::{
    credentials::Credentials,
    error::{Class, Error, Result},
};

const OPERATION: &str = "read the profile";

/// What a profile says.
pub(super) enum Profile {
    Key(Credentials),
    /// A role that is assumed with an access key.
    Role {
        key: Credentials,
        role: Role,
    },
    /// A role that is assumed with a token file.
    OidcRole(OidcRole),
    /// The role of the instance, by name or the one that it has.
    InstanceRole(Option<String>),
}

/// The file of the command line.
#[derive(Deserialize)]
struct CliConfig {
    #[serde(default)]
    current: String,
    #[serde(default)]
    profiles: Vec<CliProfile>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CliProfile {
    name: String,
    mode: String,
    access_key_id: String,
    access_key_secret: String,
    sts_token: String,
    ram_role_arn: String,
    ram_role_name: String,
    ram_session_name: String,
    role_session_name: String,
    expired_seconds: u32,
    policy: String,
    external_id: String,
    oidc_provider_arn: String,
    oidc_token_file: String,
    sts_region: String,
}

/// A section of an INI file.
type Section = HashMap<String, String>;

/// Finds the profile of this name, or the current one.
pub(super) async fn find(environment: &Environment, name: Option<&str>) -> Result<Lookup<Profile>> {
    let name = name.map(str::to_owned).or_else(|| environment.get("ALIBABA_CLOUD_PROFILE"));
    let home = environment.home();
    if !environment.is_true("ALIBABA_CLOUD_CLI_PROFILE_DISABLED")
        && let Some(file) = home.as_ref().map(|home| home.join(".aliyun/config.json"))
        && let Some(text) = read(&file).await?
        && let Some(profile) = of_cli(&file, &text, name.as_deref())?
    {
        return Ok(Lookup::Found(profile));
    }
    // The SDKs do not agree on the name.
    let files = match (environment.get("ALIBABA_CLOUD_CREDENTIALS_FILE"), home) {
        (Some(file), _) => vec![PathBuf::from(file)],
        (None, Some(home)) => {
            ["credentials.ini", "credentials"].map(|file| home.join(".alibabacloud").join(file)).into()
        }
        (None, None) => Vec::new(),
    };
    for file in files {
        let Some(text) = read(&file).await? else { continue };
        if let Some(section) = sections(&text).remove(name.as_deref().unwrap_or("default")) {
            return of_section(&file, section).map(Lookup::Found);
        }
    }
    let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
    let text =
        format!("there is no profile{name} in ~/.aliyun/config.json or ~/.alibabacloud/credentials.ini");
    Ok(Lookup::NotConfigured(text))
}

/// `None` if there is no such file.
async fn read(file: &Path) -> Result<Option<String>> {
    match tokio::fs::read_to_string(file).await {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(mistake(file, &format!("cannot be read: {error}"))),
    }
}

/// A profile of the command line. `None` if it does not exist or has no key, like the one that `aliyun` writes at first.
fn of_cli(file: &Path, text: &str, name: Option<&str>) -> Result<Option<Profile>> {
    // The text of the error might contain a value.
    let config: CliConfig = serde_json::from_str(text).map_err(|error| {
        mistake(
            file,
            &format!("is not a valid configuration (line {}, column {})", error.line(), error.column()),
        )
    })?;
    let name = name.unwrap_or(&config.current);
    let Some(profile) = config.profiles.into_iter().find(|profile| profile.name == name) else {
        return Ok(None);
    };
    let set = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
    let role = Role {
        session: set(&profile.ram_session_name).or_else(|| set(&profile.role_session_name)),
        policy: set(&profile.policy),
        external_id: set(&profile.external_id),
        lifetime_seconds: Some(profile.expired_seconds).filter(|seconds| *seconds > 0),
        region: set(&profile.sts_region),
        ..Role::new(profile.ram_role_arn)
    };
    let has_key = !profile.access_key_id.is_empty() && !profile.access_key_secret.is_empty();
    let key = Credentials::new(profile.access_key_id, profile.access_key_secret).from_source(source(file));
    match profile.mode.as_str() {
        "AK" | "" => Ok(has_key.then_some(Profile::Key(key))),
        "StsToken" => Ok(has_key.then(|| Profile::Key(key.with_token(profile.sts_token)))),
        "RamRoleArn" => complete(file, Profile::Role { key, role }).map(Some),
        "EcsRamRole" => Ok(Some(Profile::InstanceRole(set(&profile.ram_role_name)))),
        "OIDC" => {
            let (provider, token_file) = (profile.oidc_provider_arn, profile.oidc_token_file.into());
            complete(file, Profile::OidcRole(OidcRole { role, provider, token_file })).map(Some)
        }
        mode => Err(mistake(
            file,
            &format!(
                "has the profile {name:?} with mode {mode}, which is not supported: use AK, StsToken, RamRoleArn, EcsRamRole or \
                 OIDC"
            ),
        )),
    }
}

/// A profile of the SDKs.
fn of_section(file: &Path, mut section: Section) -> Result<Profile> {
    let kind = section.remove("type").unwrap_or_default();
    let mut take = |name: &str| section.remove(name).filter(|value| !value.is_empty());
    let key = Credentials::new(
        take("access_key_id").unwrap_or_default(),
        take("access_key_secret").unwrap_or_default(),
    )
    .from_source(source(file));
    let role = Role {
        session: take("role_session_name"),
        policy: take("policy"),
        ..Role::new(take("role_arn").unwrap_or_default())
    };
    let profile = match kind.as_str() {
        "access_key" => Profile::Key(key),
        "sts" => Profile::Key(key.with_token(take("security_token").unwrap_or_default())),
        "ram_role_arn" => Profile::Role { key, role },
        "oidc_role_arn" => Profile::OidcRole(OidcRole {
            role,
            provider: take("oidc_provider_arn").unwrap_or_default(),
            token_file: take("oidc_token_file_path").unwrap_or_default().into(),
        }),
        "ecs_ram_role" => Profile::InstanceRole(take("role_name")),
        _ => {
            return Err(mistake(
                file,
                "has a profile with an unknown type: use access_key, sts, ram_role_arn, oidc_role_arn or ecs_ram_role",
            ));
        }
    };
    complete(file, profile)
}

/// Refuses a profile that lacks what it needs.
fn complete(file: &Path, profile: Profile) -> Result<Profile> {
    let has_key = |key: &Credentials| {
        !key.access_key_id.is_empty() && !key.access_key_secret.expose_secret().is_empty()
    };
    let missing = match &profile {
        Profile::Key(key) | Profile::Role { key, .. } if !has_key(key) => "an access key",
        Profile::Role { role, .. } | Profile::OidcRole(OidcRole { role, .. }) if role.arn.is_empty() => {
            "the ARN of a role"
        }
        Profile::OidcRole(oidc) if oidc.provider.is_empty() => "the ARN of an OIDC provider",
        Profile::OidcRole(oidc) if oidc.token_file.as_os_str().is_empty() => "a token file",
        _ => return Ok(profile),
    };
    Err(mistake(file, &format!("has a profile without {missing}")))
}

fn source(file: &Path) -> String {
    format!("the profile in {}", file.display())
}

fn mistake(file: &Path, what: &str) -> Error {
    Error::new(Class::Auth, OPERATION, format!("{} {what}", file.display()))
}

/// The sections of an INI file. Comments begin with `#` or `;`, the former also behind a value.
fn sections(text: &str) -> HashMap<String, Section> {
    let mut sections: HashMap<String, Section> = HashMap::new();
    let mut current = None;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            current = Some(sections.entry(name.trim().to_owned()).or_default());
        } else if let (Some(section), Some((key, value))) = (current.as_mut(), line.split_once(['=', ':'])) {
            let value = value.split('#').next().unwrap_or_default().trim();
            section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_keys_values_and_comments() {
        let text = "# first\n[default]\nType = access_key # a comment\naccess_key_id: id\n; more\n\n[other]\na=b=c\n";
        let sections = sections(text);
        assert_eq!(sections["default"]["type"], "access_key");
        assert_eq!(sections["default"]["access_key_id"], "id");
        assert_eq!(sections["other"]["a"], "b=c");
        assert!(self::sections("a = b").is_empty(), "a key before any section");
    }
}
