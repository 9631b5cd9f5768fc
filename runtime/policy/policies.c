/*
 * policies.c: the table of policies.
 */
#include <runtime/base/policy.h>

#include <string.h>

static const pleat__policy_ops *const policies[] = {
#define POLICY_ENTRY(name) &pleat__policy_##name,
    PLEAT__POLICIES(POLICY_ENTRY)
#undef POLICY_ENTRY
};

const pleat__policy_ops *pleat__policy_find(const char *name)
{
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

const char *pleat__policy_names(void)
{
#define POLICY_NAME(name) " " #name
    return PLEAT__POLICIES(POLICY_NAME);
#undef POLICY_NAME
}
