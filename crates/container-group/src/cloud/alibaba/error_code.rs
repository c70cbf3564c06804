//! What the error codes of Alibaba's APIs mean. Their HTTP status says less: throttling is a 400, a wrong access key a 404.

use std::time::Duration;

use http::StatusCode;

use crate::cloud::{
    client::Response,
    error::{Class, Shortage},
    request::Effect,
};

/// What a refusal means.
pub(super) fn classify(
    status: StatusCode,
    code: Option<&str>,
    said: &str,
    effect: Effect,
    after: Option<Duration>,
) -> Class {
    let by_code = code.and_then(|code| of_code(code, effect, after));
    let class = by_code.unwrap_or_else(|| of_status(status, code, effect, after));
    match class {
        // A code that is not known here, but the text says that it passes: "... failed, please try again later".
        Class::Invalid { field: None } if said.to_ascii_lowercase().contains("try again") => Class::Transient,
        class => class,
    }
}

fn of_code(code: &str, effect: Effect, after: Option<Duration>) -> Option<Class> {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| code.starts_with(prefix));
    let contains = |parts: &[&str]| parts.iter().any(|part| code.contains(part));
    Some(match code {
        // Something on the way has sent the request twice.
        "SignatureNonceUsed" => unknown_outcome(effect),
        "InvalidTimeStamp.Expired"
        | "InvalidTimeStamp.Format"
        | "IllegalTimestamp"
        | "RequestTimeTooSkewed" => Class::ClockSkew,
        "InvalidSecurityToken.Expired" | "SecurityTokenExpired" => Class::ExpiredToken,
        _ if is_unknown_key(code) => Class::Auth,
        _ if begins(&[
            "InvalidSecurityToken",
            "MissingSecurityToken",
            "AuthenticationFail",
            "EntityNotExist.Role",
        ]) || contains(&["AccessKey", "Signature"]) =>
        {
            Class::Auth
        }
        _ if begins(&["Throttling", "Degrade.Api"]) || contains(&["FlowControl", "RequestLimitExceeded"]) => {
            Class::Throttled { after }
        }
        // The account owes money, or has none.
        _ if begins(&["Account.", "InvalidAccountStatus"])
            || contains(&["InsufficientBalance", "NotEnoughBalance", "Arrearage"]) =>
        {
            Class::Auth
        }
        _ if begins(&["Zone.NotOnSale", "Zone.NotOpen"]) || contains(&["StockClose"]) => {
            Class::Capacity(Shortage::Zone)
        }
        _ if contains(&["NoStock", "StockExhaust", "OutOfStock"])
            || begins(&["InvalidResourceType.NotSupported"]) =>
        {
            Class::Capacity(Shortage::InstanceType)
        }
        _ if contains(&["QuotaExceed", "QuotaFull", "ExceedQuota", "QuotaLimit"]) => Class::Quota,
        _ if contains(&[
            "IncorrectStatus",
            "IncorrectInstanceStatus",
            "Idempoten",
            "Duplicated.ClientToken",
        ]) || begins(&["OperationInProgress", "OperationConflict", "Conflict"]) =>
        {
            Class::Conflict
        }
        _ if begins(&[
            "Forbidden",
            "Forbbiden",
            "NoPermission",
            "Unauthorized",
            "ActionUnauthorized",
            "NotAuthorized",
        ]) || contains(&["NotAuthorized", ".Denied"]) =>
        {
            Class::Auth
        }
        _ if begins(&[
            "InternalError",
            "InternalFailure",
            "ServiceUnavailable",
            "SerivceUnavailable",
            "UnknownError",
        ]) || contains(&["Timeout", "TryAgain"]) =>
        {
            unknown_outcome(effect)
        }
        // A vSwitch that does not exist is a mistake in a create, and not the absence of the group.
        _ if code.contains("NotFound") => match effect {
            Effect::Create => Class::Invalid { field: field(code) },
            Effect::Repeatable if begins(&["InvalidAction", "InvalidVersion"]) => {
                Class::Invalid { field: field(code) }
            }
            Effect::Repeatable => Class::NotFound,
        },
        _ if begins(&["Invalid", "Missing", "Illegal", "Unsupported", "Malformed"]) => {
            Class::Invalid { field: field(code) }
        }
        _ => return None,
    })
}

fn of_status(status: StatusCode, code: Option<&str>, effect: Effect, after: Option<Duration>) -> Class {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Class::Auth
        }
        StatusCode::TOO_MANY_REQUESTS => Class::Throttled { after },
        // Without a code it is not the service that says so.
        StatusCode::NOT_FOUND if code.is_some() && effect == Effect::Repeatable => Class::NotFound,
        StatusCode::CONFLICT if code.is_some() => Class::Conflict,
        _ if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT && code.is_some() => {
            Class::Invalid { field: None }
        }
        _ => unknown_outcome(effect),
    }
}

fn unknown_outcome(effect: Effect) -> Class {
    match effect {
        Effect::Create => Class::Ambiguous,
        Effect::Repeatable => Class::Transient,
    }
}

/// The parameter that a code names: `InvalidVSwitchId.NotFound`, `InvalidParameter.Cpu`.
fn field(code: &str) -> Option<String> {
    let (head, tail) = code.split_once('.').unwrap_or((code, ""));
    let named = match head {
        "InvalidParameter" | "MissingParameter" | "InvalidParameterValue" | "UnsupportedParameter" => tail,
        _ => head.strip_prefix("Invalid").or_else(|| head.strip_prefix("Missing")).unwrap_or_default(),
    };
    let is_kind_of_mistake = matches!(named, "" | "Parameter" | "Format" | "NotFound" | "ValueNotSupported");
    (!is_kind_of_mistake).then(|| named.to_owned())
}

/// Whether the access key does not exist or is disabled.
pub(super) fn is_unknown_key(code: &str) -> bool {
    code.starts_with("InvalidAccessKeyId")
}

/// Whether the message repeats what was signed, that is, the whole request.
pub(super) fn repeats_the_request(code: &str) -> bool {
    code.contains("Signature")
}

/// The delay that a refusal asks for: the vendor's header counts milliseconds.
pub(super) fn delay(response: &Response) -> Option<Duration> {
    let own = response.header("x-acs-retry-after").and_then(|text| text.trim().parse().ok());
    let own = own.filter(|milliseconds| *milliseconds > 0).map(Duration::from_millis);
    own.or_else(|| response.retry_after()).map(|delay| delay.min(crate::budget::LONGEST_DELAY))
}

/// The message of a refusal, with what to do. `said` is what the cloud says, without secrets.
pub(super) fn explain(class: &Class, code: Option<&str>, said: &str, status: StatusCode) -> String {
    let said = match (said, code) {
        ("", None) => format!("the cloud answered with status {}", status.as_u16()),
        ("", Some(_)) => "the cloud refused the call".to_owned(),
        (said, _) => said.trim_end_matches('.').to_owned(),
    };
    let advice = match (class, code.unwrap_or_default()) {
        (_, code) if is_unknown_key(code) => "check the id of the access key, and that it is enabled",
        (_, code) if repeats_the_request(code) && code != "SignatureNonceUsed" => {
            "the signature does not match: check the secret of the access key"
        }
        (Class::Auth, code) if code.contains("Arrearage") || code.contains("Balance") => {
            "check the balance of the account"
        }
        (Class::Auth, _) => "check the permissions of the RAM user or role",
        (Class::ExpiredToken, _) => "temporary credentials must be renewed",
        (Class::ClockSkew, _) => "set the clock of this host: the cloud accepts 15 minutes of difference",
        (Class::Quota, _) => "ask for a higher quota or remove what is not needed",
        _ => return said,
    };
    format!("{said}; {advice}")
}
