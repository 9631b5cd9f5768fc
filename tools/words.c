/*
 * words.c: see words.h.
 */
#include <tools/words.h>

#include <stddef.h>
#include <string.h>

static const struct {
    const char *word, *line;
} all[] = {
#define WORD(word, line) {word, line},
    WORDS(WORD)
#undef WORD
};

const char *words_line(const char *word)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].word, word) == 0)
            return all[i].line;
    return NULL;
}

void words_explain(FILE *out, const char *list)
{
    for (char word[32]; *list != '\0';) {
        size_t length = strcspn(list, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, list);
        const char *line = words_line(word);
        if (line != NULL)
            fprintf(out, "  %-10s  %s\n", word, line);
        list += length + (list[length] == ',');
    }
}

void words_print(FILE *out)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        fprintf(out, "%-13s  %s\n", all[i].word, all[i].line);
}
